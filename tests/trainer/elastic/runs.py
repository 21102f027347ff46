"""Runs of elastic slices with real processes: one host or several in each slice, and the registry."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.ports import free_port
from tests.trainer.small import WORKLOADS, arguments
from tests.waiting import until
from xpk_shared.slices.registry import Registry

SECRET = "0" * 64
FATAL = 42  # exit code of a host that cannot continue


def serve(port: int, num_slices: int, min_slices: int) -> None:
    """Serve the registry, as the supervisor of slice 0 host 0 does."""
    Registry("job", SECRET.encode(), num_slices, min_slices).open("127.0.0.1", port)
    threading.Event().wait()


class ElasticRun:
    """Processes of the hosts of elastic slices; the caller kills and starts them.

    With `min_slices=0` the slices are not elastic: JAX joins them. `faults` are planted in the first hosts of these
    slices (planted.py) when they start for the first time.
    """

    def __init__(
        self,
        out: Path,
        settings: Sequence[str],
        *,
        slices: int = 2,
        hosts: int = 1,
        chips: int = 2,
        min_slices: int = 1,
        faults: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.out, self._settings, self._slices, self._hosts = out, settings, slices, hosts
        self._chips, self._min_slices = chips, min_slices
        out.mkdir(parents=True, exist_ok=True)
        (out / "secret").write_text(SECRET)
        self._registry_port = free_port()
        self._coordinator_port = free_port()
        self.registry = self._start_registry()
        self.processes: dict[tuple[int, int], subprocess.Popen[bytes]] = {}
        self._attempts = [0] * slices
        self._faults = dict(faults)
        for number in range(slices):
            self.start(number)

    def _start_registry(self) -> subprocess.Popen[bytes]:
        numbers = f"{self._registry_port}, {self._slices}, {self._min_slices}"
        program = f"from tests.trainer.elastic.runs import serve; serve({numbers})"
        environ = os.environ | {"PYTHONPATH": f"{WORKLOADS}:{WORKLOADS.parent}"}
        return subprocess.Popen([sys.executable, "-c", program], env=environ)

    def replace_registry(self) -> None:
        """Kill the registry, and start another one."""
        self.registry.kill()
        self.registry.wait()
        self.registry = self._start_registry()

    def restart(self, number: int, settings: Sequence[str] = ()) -> None:
        """Wait until the hosts of a slice have ended, and start them again, as its supervisors do."""
        for host in range(self._hosts):
            self.processes[number, host].wait(30)
        self.start(number, settings)

    def start(self, number: int, settings: Sequence[str] = ()) -> None:
        """Start the hosts of a slice."""
        first = free_port() if self._min_slices else self._coordinator_port
        attempt, self._attempts[number] = self._attempts[number], self._attempts[number] + 1
        for host in range(self._hosts):
            env = {
                "MEGASCALE_NUM_SLICES": str(self._slices),
                "MEGASCALE_SLICE_ID": str(number),
                "TPU_WORKER_ID": str(host),
                "TPU_WORKER_HOSTNAMES": ",".join(["127.0.0.1"] * self._hosts),
                "XPK_HOSTS_PER_SLICE": str(self._hosts),
                "XPK_COORDINATOR_ADDRESS": f"127.0.0.1:{first}",
                "XPK_MIN_SLICES": str(self._min_slices or ""),
                "XPK_SLICE_REGISTRY": f"127.0.0.1:{self._registry_port}",
                "XPK_JOB_ID": "job",
                "XPK_RESTART_ATTEMPT": str(attempt),
                "XPK_OUTPUT_DIR": str(self.out),
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": str(self._chips),
                "XPK_PEER_SECRET_FILE": str(self.out / "secret"),
                "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
                "PYTHONPATH": f"{WORKLOADS}:{WORKLOADS.parent}",
            }
            fault = self._faults.pop(number, "") if host == 0 else ""
            program = ["tests.trainer.planted", fault] if fault else ["trainer"]
            command = [sys.executable, "-m", *program, "train", *arguments([*self._settings, *settings])]
            with (self.out / f"log-{number}-{host}-{attempt}").open("wb") as log:
                process = subprocess.Popen(command, env=os.environ | env, stdout=log, stderr=subprocess.STDOUT)
            self.processes[number, host] = process

    def kill(self, number: int, host: int = 0, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to a host."""
        self.processes[number, host].send_signal(signal_number)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl that are complete."""
        return [json.loads(line) for line in self._read("metrics.jsonl") if line.endswith("}")]

    def losses(self) -> dict[int, str]:
        """Return the losses as hex, by step."""
        return {record["step"]: record["loss_hex"] for record in self.metrics() if "loss_hex" in record}

    def recorded_steps(self) -> list[int]:
        """Return the steps in the order of their records; repeated steps occur twice."""
        return [record["step"] for record in self.metrics() if "loss_hex" in record]

    def changes(self) -> list[tuple[int, list[int]]]:
        """Return the sets of active slices that the run recorded, each with the step after which they were active."""
        records = [json.loads(line) for line in self._read("slices.jsonl") if line.endswith("}")]
        return [(record["step"], record["slices"]) for record in records]

    def active(self) -> list[list[int]]:
        """Return the sets of active slices that the run recorded."""
        return [slices for _, slices in self.changes()]

    def run_record(self) -> dict[str, Any]:
        """Return the record that the run keeps from one attempt to the next."""
        content: dict[str, Any] = json.loads((self.out / "measurements.json").read_text())
        return content

    def wait_for_step(self, step: int, seconds: float = 120) -> None:
        """Wait until a step is finished."""
        self._wait(lambda: max(self.losses(), default=0) >= step, f"no step {step}", seconds)

    def wait_for_slices(self, slices: list[int], seconds: float = 120) -> None:
        """Wait until exactly these slices are active."""
        self._wait(lambda: self.active()[-1:] == [slices], f"slices are not {slices}", seconds)

    def exit_codes(self, seconds: float = 120) -> dict[tuple[int, int], int]:
        """Wait for all hosts to end."""
        self._wait(lambda: all(p.poll() is not None for p in self.processes.values()), "hosts still run", seconds)
        return {place: int(process.returncode) for place, process in self.processes.items()}

    def close(self) -> None:
        """Kill what still runs."""
        for process in [*self.processes.values(), self.registry]:
            if process.poll() is None:
                process.kill()
            process.wait()

    def logs(self) -> str:
        """Return the output of all hosts."""
        return "\n".join(f"{path.name}\n{path.read_text()}" for path in sorted(self.out.glob("log-*")))

    def _wait(self, is_met: Callable[[], bool], problem: str, seconds: float) -> None:
        def has_ended() -> bool:
            return is_met() or FATAL in [process.poll() for process in self.processes.values()]

        until(has_ended, seconds=seconds, every=0.02, report=lambda: f"{problem}\n{self.logs()}")
        assert is_met(), f"{problem}: a host has exited with {FATAL}\n{self.logs()}"

    def _read(self, name: str) -> list[str]:
        path = self.out / name
        return path.read_text().splitlines() if path.exists() else []
