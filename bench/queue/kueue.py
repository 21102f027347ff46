"""Kueue itself, as a program with an API server on this machine.

Workloads are submitted, finished and, after a preemption, released as by the runner of Kueue's own test: it takes the
place of the jobs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.queue.load import CHIPS, QUOTA, Entry, Log
from e2e.api_server import BINARIES, api_server
from e2e.controllers import controllers
from e2e.workload_status import change_status, conditions_of, released, with_conditions
from xpk.api.base import Obj
from xpk.api.kubernetes import KubernetesApi
from xpk.capacity.controllers import install

_API = "kueue.x-k8s.io/v1beta2"
_RESOURCE = "google.com/tpu"
_WATCH_SECONDS = 5.0
_THREADS = 8


def run(folder: Path, log: Log, seconds: float) -> dict[str, Any]:
    """Submit the workloads to Kueue and finish each after its time; return the CPU time of the programs."""
    started = list[int]()
    (server := folder / "server").mkdir()
    with (
        api_server(server, BINARIES, started=started) as kubeconfig,
        controllers(folder / "controllers", kubeconfig) as manifests,
    ):
        api = KubernetesApi(kubeconfig=kubeconfig)
        for controller in install.CONTROLLERS:
            source = manifests[f"XPK_{controller.name.upper()}_MANIFEST"]
            install.install(api, controller, pinned=False, source=source)
        _set_up(api)
        kueue = _pids(str(BINARIES / "kueue"), str(folder))
        before = _cpu(kueue), _cpu(started)
        Runner(kubeconfig, log).run(seconds)
        return {
            "cpu_seconds": round(_cpu(kueue) - before[0], 2),
            "api_server_cpu_seconds": round(_cpu(started) - before[1], 2),
        }


class Runner:
    """Submits workloads, and plays the jobs of those that are admitted."""

    def __init__(self, kubeconfig: Path, log: Log) -> None:
        self._kubeconfig, self._log = kubeconfig, log
        self._api = KubernetesApi(kubeconfig=kubeconfig)
        self._executor = ThreadPoolExecutor(_THREADS)
        self._stopped = threading.Event()

    def run(self, seconds: float) -> None:
        """Run all workloads. Raises TimeoutError."""
        watching = threading.Thread(target=self._watch, daemon=True)
        watching.start()
        start = time.monotonic()
        for entry in self._log.entries.values():
            time.sleep(max(0.0, start + entry.due - time.monotonic()))
            self._executor.submit(self._submit, entry)
        while not self._log.is_done:
            if time.monotonic() - start > seconds:
                raise TimeoutError(f"not done after {seconds:.0f} s")
            time.sleep(0.05)
        self._stopped.set()
        watching.join()
        self._executor.shutdown()

    def _submit(self, entry: Entry) -> None:
        container = {"name": "host", "image": "none", "resources": {"requests": {_RESOURCE: str(CHIPS)}}}
        pod: Obj = {"restartPolicy": "Never", "containers": [container]}
        pod_set = {"name": "main", "count": entry.kind.slices, "template": {"spec": pod}}
        self._api.create(
            {
                "apiVersion": _API,
                "kind": "Workload",
                "metadata": {"name": entry.name, "namespace": "default"},
                "spec": {"queueName": "queue", "priority": entry.kind.priority, "podSets": [pod_set]},
            }
        )
        entry.created = time.monotonic()

    def _watch(self) -> None:
        api = KubernetesApi(kubeconfig=self._kubeconfig)
        while not self._stopped.is_set():
            for _, obj in api.watch("Workload", timeout=_WATCH_SECONDS):
                self._handle(obj)
                if self._stopped.is_set():
                    return

    def _handle(self, obj: Obj) -> None:
        name, conditions = obj["metadata"]["name"], conditions_of(obj)
        is_evicted = conditions.get("Evicted") == "True"
        admitted = conditions.get("Admitted") == "True" and not is_evicted
        if self._log.note(name, admitted=admitted) and admitted:
            entry = self._log.entries[name]
            turn = len(entry.admitted)
            timer = threading.Timer(entry.kind.seconds, self._finish, (entry, turn))
            timer.daemon = True
            timer.start()
        if is_evicted and conditions.get("QuotaReserved") == "True":
            self._executor.submit(self._release, name)

    def _finish(self, entry: Entry, turn: int) -> None:
        """Report the end of an admitted workload, unless it was preempted since."""

        def change(obj: Obj) -> Obj | None:
            if not entry.runs or len(entry.admitted) != turn or conditions_of(obj).get("Evicted") == "True":
                return None
            return {"conditions": with_conditions(obj, Finished=("True", "Succeeded"))}

        if change_status(self._api, entry.name, change):
            with self._log.lock:
                entry.finished = time.monotonic()

    def _release(self, name: str) -> None:
        """Release the quota of a preempted workload, as its job's controller does once the pods have ended."""
        change_status(self._api, name, released)


def _set_up(api: KubernetesApi) -> None:
    quota = {"name": _RESOURCE, "nominalQuota": QUOTA * CHIPS}
    group = {"coveredResources": [_RESOURCE], "flavors": [{"name": "flavor", "resources": [quota]}]}
    spec = {
        "namespaceSelector": {}, "queueingStrategy": "BestEffortFIFO", "resourceGroups": [group],
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Never"},
    }  # fmt: skip
    local = {"name": "queue", "namespace": "default"}
    for kind, meta, content in (
        ("ResourceFlavor", {"name": "flavor"}, {}),
        ("ClusterQueue", {"name": "cluster-queue"}, spec),
        ("LocalQueue", local, {"clusterQueue": "cluster-queue"}),
    ):
        api.create({"apiVersion": _API, "kind": kind, "metadata": meta, "spec": content})


def _pids(program: str, argument: str) -> list[int]:
    """Return the processes of a program whose arguments contain a text."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text(encoding="utf-8").split("\0")
        except OSError:
            continue
        if words[0] == program and any(argument in word for word in words):
            pids.append(int(folder.name))
    return pids


def _cpu(pids: Sequence[int]) -> float:
    """Return the CPU time of processes so far, in seconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
