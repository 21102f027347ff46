"""A kind cluster for the end-to-end tests, and what is done to it that `xpk` has no command for.

    eval "$(e2e/environment/up)" && .venv/bin/python -m pytest e2e/test_kind*.py --timeout 900

All files share one cluster a session (the fixture `place` of conftest.py): two slices of two hosts and a spare
slice, each on a node of its own. With XPK_E2E_KEEP=FOLDER it is kept there, under
the folder's name, and the next session goes on with it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from e2e.harness import DrillError, Lab
from tests.waiting import until

TPU_TYPE, SLICES, SPARE_SLICES = "v5litepod-8", 2, 1
AWAY_SECONDS = 420.0  # until a killed component works again: the kubelet waits for up to 5 minutes before a restart
_PATIENCE = 60.0  # with an API server that does not answer
_NO_ANSWER = ("Unable to connect to the server", "The connection to the server", "TLS handshake timeout", "i/o timeout")
XPK = [sys.executable, "-m", "xpk"]
_INHERITED = (
    "XPK_E2E_",
    "XPK_KIND_",
    "XPK_BASE_IMAGE",
    "XPK_TRAINER_IMAGE",
    "XPK_JOBSET_MANIFEST",
    "XPK_KUEUE_MANIFEST",
)
_CONTROLLERS = {
    "jobset": ("jobset-system", "deployment/jobset-controller-manager"),
    "kueue": ("kueue-system", "deployment/kueue-controller-manager"),
}


def why_not() -> str:
    """Return the reason why tests on kind cannot run here, or ""."""
    missing = [program for program in ("docker", "kind", "kubectl") if not shutil.which(program)]
    if missing:
        return f"no {', '.join(missing)} on PATH"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return "Docker does not answer"
    return "" if os.environ.get("XPK_E2E_JOBSET_MANIFEST") else "XPK_E2E_JOBSET_MANIFEST is not set"


def docker(*arguments: str) -> str:
    """Run a command of Docker. Raises CalledProcessError."""
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class KindLab(Lab):
    """The harness's view of a kind cluster, whose hosts are pods."""

    provider: ClassVar[str] = "kind"

    def kill(self, host: Mapping[str, Any], number: signal.Signals) -> None:
        """See `Lab.kill`. A pod's first process cannot be killed from inside; its node's containerd can."""
        task = ("ctr", "-n", "k8s.io", "task", "kill", "-s", number.name, self._container(host))
        try:
            docker("exec", host["node"], *task)
        except subprocess.CalledProcessError as error:
            raise ProcessLookupError(error.stderr) from error

    def pid_here(self, host: Mapping[str, Any], pid: int) -> int:
        """See `Lab.pid_here`."""
        pids = self.pids(host)
        if pid not in pids:
            raise ProcessLookupError(pid)
        return pids[pid]

    def pids(self, host: Mapping[str, Any]) -> dict[int, int]:
        """Return the processes of a host by their pids in its container, with those on this machine."""
        container, pids = self._container(host), {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):  # it has ended
                    if container in (folder / "cgroup").read_text(encoding="ascii"):
                        pids[_innermost_pid(folder)] = int(folder.name)
        return pids

    def _container(self, host: Mapping[str, Any]) -> str:
        """Return the container of a host's pod. Raises ProcessLookupError without one."""
        path = "jsonpath={.status.containerStatuses[0].containerID}"
        container = self.kubectl("get", "pod", host["pod"], "-o", path).removeprefix("containerd://")
        if not container:
            raise ProcessLookupError(host["pod"])
        return container

    def kubectl(self, *arguments: str, patience: float = _PATIENCE) -> str:
        """Run kubectl; return its output, or "" without output or without an answer within `patience` seconds."""
        argv = ["kubectl", f"--kubeconfig={self.state / 'kubeconfig'}", *arguments]
        deadline = time.monotonic() + patience
        while True:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if time.monotonic() > deadline or not any(text in done.stderr for text in _NO_ANSWER):
                return done.stdout
            time.sleep(1)

    @property
    def state(self) -> Path:
        """The folder of the cluster's files."""
        return self.folder / "state" / "kind" / self.cluster

    def collect(self, into: Path) -> None:
        """See `Lab.collect`."""
        Lab.collect(self, into)
        if not (self.state / "kubeconfig").exists():
            return
        read = partial(self.kubectl, patience=0.0)
        for name, kinds in {
            "objects.yaml": "jobsets,jobs,pods,workloads.kueue.x-k8s.io,clusterqueues,localqueues",
            "nodes.yaml": "nodes",
        }.items():
            (into / name).write_text(read("get", kinds, "-A", "-o", "yaml"))
        (into / "events.txt").write_text(read("get", "events", "-A", "--sort-by=.lastTimestamp"))
        for name, (namespace, controller) in _CONTROLLERS.items():
            for suffix, which in (("", ()), (".previous", ("--previous",))):
                if log := read("logs", "-n", namespace, controller, "--timestamps", *which):
                    (into / f"{name}{suffix}.log").write_text(log)
        for pod in read("get", "pods", "-o", "name").split():
            (into / "hosts").mkdir(exist_ok=True)
            log = read("logs", pod, "--timestamps", "--all-containers")
            (into / "hosts" / f"{Path(pod).name}.log").write_text(log)

    @property
    def environ(self) -> dict[str, str]:
        """See `Lab.environ`."""
        kept = {key: value for key, value in os.environ.items() if key.startswith(_INHERITED)}
        ours = {"XPK_KIND_SPARE_SLICES": str(SPARE_SLICES), "HOME": str(self.folder / "home")}
        theirs: dict[str, str] = Lab.environ.__get__(self)
        return theirs | kept | ours


@dataclass(frozen=True, slots=True)
class Place:
    """The cluster that the tests share, as a user has it: a home, a kubeconfig that must not change, and commands."""

    lab: KindLab

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.lab.cluster

    @property
    def folder(self) -> Path:
        """Return the folder of all files on this machine."""
        return self.lab.folder

    @property
    def state(self) -> Path:
        """The folder of the cluster's files."""
        return self.lab.state

    @property
    def kubeconfig(self) -> Path:
        """Return the user's kubeconfig."""
        return self.folder / "home" / ".kube" / "config"

    @property
    def create(self) -> tuple[str, ...]:
        """Return the command that creates the cluster."""
        size = ("--tpu-type", TPU_TYPE, "--num-slices", str(SLICES))
        return ("cluster", "create", self.cluster, "--provider", "kind", *size)

    def xpk(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command and check its exit code."""
        argv = [*XPK, *arguments]
        done = subprocess.run(argv, env=self.lab.environ, capture_output=True, text=True, check=False, timeout=800)
        assert done.returncode == code, f"{done.args}\n{done.stdout}\n{done.stderr}\n{self.what_is_there()}"
        return done

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl."""
        return self.lab.kubectl(*arguments)

    def end(self, workload: str) -> None:
        """End a workload, so that others can use its slices."""
        how = ("--yes", "--grace-period", "1", "--ignore-not-found")
        self.xpk("workload", "delete", workload, "--cluster", self.cluster, *how)

    def clear(self) -> None:
        """End every workload and restore nodes, whatever state a failed test has left."""
        self.wake()
        self.kubectl("delete", "jobsets", "--all", "--all-namespaces", "--wait=false")
        self.kubectl("wait", "pods", "-A", "-l", "xpk.google.com/workload", "--for=delete", "--timeout=240s")
        hosts = ("-A", "-l", "xpk.google.com/workload")
        self.kubectl("delete", "pods", *hosts, "--force", "--grace-period=0")

    def wake(self) -> None:
        """Unfreeze and uncordon all nodes, also those that were fenced."""
        for container in self.containers("--filter", "status=paused"):
            docker("unpause", container)
        for container in self.containers("--filter", "status=exited"):
            docker("start", container)
        for node in self.kubectl("get", "nodes", "-o", "name").split():
            self.kubectl("uncordon", node)
            self.kubectl("taint", "node", node.removeprefix("node/"), "node.kubernetes.io/out-of-service-")

    @contextmanager
    def fencing(self) -> Iterator[Path]:
        """Fence nodes until the end of the block; yield the file of the command's output."""
        # The same nodes fail repeatedly, which the default budget would defer.
        argv = [*XPK, "cluster", "fence", self.cluster, "--watch", "--max-nodes", "100"]
        file = self.folder / "fence.log"
        with file.open("w") as log, subprocess.Popen(argv, env=self.lab.environ, stdout=log, stderr=log) as process:
            try:
                until(lambda: "looking at the nodes" in file.read_text(), seconds=120, report=file.read_text)
                yield file
            finally:
                process.terminate()

    def kill_component(self, namespace: str, selector: str, while_stopped: Callable[[], None] | None = None) -> None:
        """Kill the process of a pod on the control plane with SIGKILL; before that, stop it for `while_stopped`."""
        pods = json.loads(self.kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", "json"))["items"]
        (pod,) = (item for item in pods if not item["metadata"].get("deletionTimestamp"))
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        kill = ("exec", f"{self.cluster}-control-plane", "ctr", "-n", "k8s.io", "task", "kill", "-s")
        if while_stopped:
            docker(*kill, "SIGSTOP", container)
            while_stopped()
        docker(*kill, "SIGKILL", container)

    def await_controllers(self) -> bool:
        """Wait for the controllers; return whether they are available."""
        available = ("--all", "--for=condition=Available", f"--timeout={AWAY_SECONDS:.0f}s")
        said = [self.kubectl("wait", "deployment", "-n", f"{name}-system", *available) for name in _CONTROLLERS]
        return all("condition met" in item for item in said)

    def containers(self, *options: str) -> list[str]:
        """Return the containers of the cluster's nodes."""
        label = f"label=io.x-k8s.kind.cluster={self.cluster}"
        return docker("ps", "--all", "--quiet", "--filter", label, *options).split()

    def gateway(self) -> str:
        """Return the address at which nodes and pods reach this machine."""
        ranges = json.loads(docker("network", "inspect", f"xpk-{self.cluster}"))[0]["IPAM"]["Config"]
        return next(str(item["Gateway"]) for item in ranges if "Gateway" in item)

    def what_is_there(self) -> str:
        """Return diagnostics for a failed test."""
        if not (self.state / "kubeconfig").exists():
            return ""
        read = partial(self.lab.kubectl, patience=0.0)
        return read("get", "nodes,pods,jobsets,workloads", "-A") + read("get", "events")

    def remove(self) -> None:
        """Delete the cluster and check that nothing of it remains."""
        self.wake()
        self.xpk("cluster", "delete", self.cluster, "--provider", "kind", "--force", "--ignore-not-found")
        assert self.containers() == []
        assert f"xpk-{self.cluster}" not in docker("network", "ls", "--format", "{{.Name}}").split()
        assert not self.state.exists()
        assert self.kubeconfig.read_text() == "current-context: precious\n", "the user's kubeconfig was changed"


def _innermost_pid(folder: Path) -> int:
    """Return a process's number in its own namespace, from its folder below /proc."""
    lines = (folder / "status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])


def open_place(folder: Path, cluster: str) -> Place:
    """Return a place in a folder, with a user's home in it, without creating a cluster."""
    place = Place(KindLab(folder=folder, cluster=cluster, say=lambda text: print(text, file=sys.stderr, flush=True)))
    place.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
    place.kubeconfig.write_text("current-context: precious\n")
    if why := why_not():
        raise DrillError(why)
    return place
