"""Raylet of this host: one `ray start --block`, cleaned up completely when the host ends."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.hosts.bootstrap import Host, bracketed
from xpk_ray.slices import host_resource

_STORE_BYTES = 80 << 20  # of the object store if hosts share a machine; Ray's minimum is 75 MiB
DASHBOARD_PORT = 8265  # Ray's default
_LINK = "xpk-ray-"
_LOG_TAIL = 4096


# If hosts share a machine, its memory use does not show which host uses too much, and it may be busy for a long time.
_SHARED_MACHINE = {
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_prestart_worker_first_driver": "false",  # a process per host, outside the shipped code, that may not be needed
    "RAY_enable_worker_prestart": "false",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_health_check_failure_threshold": "20",
}
# Ray's own metrics, collected every few seconds on every host, are for a dashboard.
_WITHOUT_DASHBOARD = {"RAY_enable_metrics_collection": "false", "REPORTER_UPDATE_INTERVAL_MS": "60000"}


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a host: `chips` of `resource` ("TPU" or "GPU"), in slices of a type and topology; 0: CPUs only."""

    chips: int = 0
    resource: str = "TPU"
    accelerator: str = ""
    topology: str = ""


@dataclass(frozen=True, slots=True)
class Services:
    """Optional services of Ray: the dashboard with jobs, and `driver_logs`, tasks' output in the driver's log."""

    dashboard: bool = False
    driver_logs: bool = True


@dataclass(frozen=True, slots=True)
class Raylet:
    """The running `ray start`, its output, and its temporary folder."""

    process: subprocess.Popen[bytes]
    log: Path
    link: Path | None

    def has_started(self) -> bool:
        """Return whether Ray is up on this host and registered with the head."""
        return b"Ray runtime started" in self._output()

    def may_start_later(self) -> bool:
        """Return whether Ray ended because this machine was too busy: its processes must start within 30 seconds."""
        return b"timed out during startup" in self._output()

    def last_words(self) -> str:
        """Return the line of Ray's output that best explains its end."""
        text = self._output()[-_LOG_TAIL:].decode(errors="replace")
        lines = [""]
        lines += [line.rpartition(" -- ")[2].strip() for line in text.splitlines() if any(map(str.isalnum, line))]
        return next(line for line in lines if "exit code" in line or "rror: " in line or line is lines[-1])

    def _output(self) -> bytes:
        with contextlib.suppress(OSError):
            return self.log.read_bytes()
        return b""

    def kill(self) -> None:
        """End Ray on this host: its processes die with their parent."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.link is not None:
            self.link.unlink(missing_ok=True)


def start(
    host: Host, shape: Shape, services: Services, *, address: str, head: str, environ: Mapping[str, str]
) -> Raylet:
    """Start Ray on this host, at its `address`; `head` is host:port of the cluster's head, the same on all hosts.

    Several hosts may share a machine, so only the head has a fixed port, and each has its own folder.
    """
    folder, link = _folder(environ)
    temp_folder = link or folder
    log = folder / "start.log"
    is_head, (name, _, port) = host.process_id == 0, head.rpartition(":")
    is_emulated = environ.get("JAX_PLATFORMS") == "cpu"
    if is_emulated and not services.dashboard:
        environ = {**_WITHOUT_DASHBOARD, **environ}
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--log-color=false"]
    argv += ["--disable-usage-stats"]
    argv += [f"--node-ip-address={address}", f"--temp-dir={temp_folder}", "--min-worker-port=0", "--max-worker-port=0"]
    argv += [f"--include-log-monitor={services.driver_logs}"]
    argv += [f"--resources={json.dumps(_resources(host, shape))}"]
    argv += [f"--num-gpus={shape.chips if shape.resource == 'GPU' else 0}"]
    argv += ["--num-cpus=1", f"--object-store-memory={_STORE_BYTES}"] if is_emulated else []
    if is_head:
        dashboard_host = address if address.startswith("127.") else "127.0.0.1"
        # The monitor is Ray's autoscaler; the queue decides the number of hosts.
        argv += ["--head", f"--port={port}", "--no-monitor", f"--include-dashboard={services.dashboard}"]
        argv += (
            [f"--dashboard-host={dashboard_host}", f"--dashboard-port={DASHBOARD_PORT}"] if services.dashboard else []
        )
    else:
        argv += [f"--address={bracketed(name.strip('[]'), int(port))}"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            env=_environment(host, shape, environ, is_emulated=is_emulated),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # a SIGTERM to this host must not end Ray before the state is saved
        )
    return Raylet(process, log, link)


def without_client_server(parameters: Any, head: bool) -> None:
    """Prevent `ray start` from serving Ray Client, whose port is the same for all clusters on a machine."""
    parameters.ray_client_server_port = None


def free_port(address: str) -> int:
    """Return a port that is free at all addresses of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))  # Ray listens at all addresses
        return int(probe.getsockname()[1])


def _resources(host: Host, shape: Shape) -> dict[str, int]:
    labels = {f"slice-{host.slice_id}": 1, host_resource(host.slice_id, host.worker_id): 1}
    return labels | ({shape.resource: shape.chips} if shape.chips and shape.resource != "GPU" else {})


def _environment(host: Host, shape: Shape, environ: Mapping[str, str], *, is_emulated: bool) -> dict[str, str]:
    """Return the environment of Ray's processes here, and so of all tasks and actors of this host."""
    required = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_START_HOOK": f"{__name__}.without_client_server",
        "XPK_RAY_HOST_PID": str(os.getpid()),
        "XPK_RAY_FOLDER": os.getcwd(),
        "PYTHONPATH": os.pathsep.join(filter(None, (os.getcwd(), environ.get("PYTHONPATH")))),
    }
    defaults = {}
    if shape.resource == "TPU" and shape.chips:
        # Otherwise Ray would query Google's metadata server, which does not exist outside Google Cloud.
        defaults = {
            "TPU_NAME": f"{host.workload}-{host.slice_id}",
            "TPU_ACCELERATOR_TYPE": shape.accelerator,
            "TPU_TOPOLOGY": shape.topology,
            "TPU_WORKER_ID": str(host.worker_id),
        }
    if is_emulated:
        defaults |= _SHARED_MACHINE
    return {**defaults, **environ, **required}


def _folder(environ: Mapping[str, str]) -> tuple[Path, Path | None]:
    """Return the folder of Ray's files on this host and, if its path is too long for sockets, a short link to it.

    On a local cluster it is in the host's own folder and removed with it; in a pod it is in /tmp.
    """
    pod_folder = environ.get("XPK_LOCAL_POD")
    if not pod_folder:
        folder = Path(tempfile.gettempdir(), "ray")
        folder.mkdir(parents=True, exist_ok=True)
        return folder, None
    folder = Path(pod_folder, "ray")
    folder.mkdir(exist_ok=True)
    root = Path(tempfile.gettempdir())
    for stale_link in root.glob(f"{_LINK}*"):
        if stale_link.is_symlink() and not stale_link.exists():  # remains of a killed host, whose folder was removed
            with contextlib.suppress(OSError):
                stale_link.unlink()
    while True:
        link = root / f"{_LINK}{secrets.token_hex(4)}"  # a name that no other user can take first
        with contextlib.suppress(FileExistsError):
            link.symlink_to(folder)
            return folder, link
