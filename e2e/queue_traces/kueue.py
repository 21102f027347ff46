"""Kueue with an API server on this machine, and the workloads of traces on it, whose jobs are played here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.api_server import BINARIES, api_server
from e2e.controllers import controllers
from e2e.queue_traces.traces import API, LOOP, RESOURCE, Step, Trace, local_queue, queue_object, workload
from e2e.workload_status import change_status, conditions_of, released, with_conditions
from tests.waiting import until
from xpk.api.base import Obj
from xpk.api.kubernetes import KubernetesApi
from xpk.capacity.controllers import install

_QUIET_SECONDS = 1.3  # without a change, after which Kueue may be at rest; creation times have whole seconds
_PATIENCE_SECONDS = 120.0  # for Kueue to come to rest
_BARRIERS = 2  # admitted one after another without another change: Kueue has decided on all others, and on the outcome
_THREADS = 16
_TRIES = 20  # of a change, if others change the workload as well


class Kueue:
    """Workloads on Kueue, whose jobs this program plays."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._api = KubernetesApi(kubeconfig=kubeconfig)
        self._executor = ThreadPoolExecutor(_THREADS)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._traces: dict[str, Trace] = {}  # by the names of workloads
        self._versions: dict[str, int] = {}  # newest one of each workload
        self._evicted: set[str] = set()
        self._to_release: set[str] = set()
        self._last_change, self._barriers = time.monotonic(), 0
        self._api.create(queue_object("barrier", {"name": RESOURCE, "nominalQuota": 1000}, {}))
        self._api.create(local_queue("barrier"))
        threading.Thread(target=self._watch, daemon=True).start()

    def add(self, traces: Sequence[Trace]) -> None:
        """Create the queues of traces."""
        self._each([queue for trace in traces for queue in trace.queues], self._api.create)
        local_queues = [local_queue(queue["metadata"]["name"]) for trace in traces for queue in trace.queues]
        self._each(local_queues, self._api.create)
        for trace in traces:
            self._traces |= dict.fromkeys(trace.uids, trace)

    def remove(self, traces: Sequence[Trace]) -> None:
        """Delete the workloads and queues of traces."""
        names = {name for trace in traces for name in trace.uids}
        existing = [obj["metadata"]["name"] for obj in self._api.list("Workload") if obj["metadata"]["name"] in names]
        with self._lock:
            self._traces = {name: trace for name, trace in self._traces.items() if name not in names}
        self._each(existing, lambda name: self._api.delete("Workload", name))
        queues = [queue["metadata"]["name"] for trace in traces for queue in trace.queues]
        self._each(queues, lambda name: self._api.delete("LocalQueue", name))
        self._each(queues, lambda name: self._api.delete("ClusterQueue", name))

    def carry_out(self, actions: Sequence[tuple[Trace, Step, str]]) -> None:
        """Submit workloads and end others, and wait until Kueue is at rest.

        Preempted workloads release their quota once Kueue has retried all others, as jobs do that take longer to stop.
        """
        self._each(actions, lambda action: self._act(*action))
        end = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < end:
            time.sleep(0.05)
            quiet = time.monotonic() - self._last_change
            if self._to_release:
                if quiet > _QUIET_SECONDS and self._rests():
                    self._release_all()
            elif quiet > _QUIET_SECONDS and self._rests():
                return

    def _release_all(self) -> None:
        """Release the quota of all preempted workloads at once, as jobs that stop within the same grace period."""
        with self._lock:
            names, self._to_release = sorted(self._to_release), set()
        self._each(names, self._release)
        self._last_change = time.monotonic()

    def _rests(self) -> bool:
        """Return whether nothing changes while Kueue admits other workloads, however long that takes."""
        before = self._last_change
        for _ in range(_BARRIERS):
            self._pass_barrier()
        listed = self._api.list("Workload")
        with self._lock:
            for obj in listed:
                self._note(obj)
        return self._last_change == before

    def _pass_barrier(self) -> None:
        """Wait until a workload of a queue of its own is admitted: in a cycle that looks at the heads of all queues."""
        self._barriers += 1
        name = f"barrier-{self._barriers}"
        self._api.create(workload(name, "barrier", 1, 0))
        until(lambda: self._is_admitted(name), seconds=_PATIENCE_SECONDS, report=lambda: "Kueue admits nothing")
        change_status(self._api, name, _finished, tries=_TRIES)
        self._api.delete("Workload", name)

    def _is_admitted(self, name: str) -> bool:
        return conditions_of(self._api.get("Workload", name)).get("Admitted") == "True"

    def close(self) -> None:
        """Stop watching."""
        self._stopped.set()
        self._executor.shutdown()

    def _each(self, items: Sequence[Any], act: Any) -> None:
        for _ in self._executor.map(act, items):
            pass

    def _act(self, trace: Trace, step: Step, ends: str) -> None:
        if ends:
            change_status(self._api, ends, _finished, tries=_TRIES)
        elif step.name:
            self._api.create(workload(step.name, step.queue, step.slices, step.priority))
        self._last_change = time.monotonic()

    def _watch(self) -> None:
        api = KubernetesApi(kubeconfig=self._kubeconfig)
        while not self._stopped.is_set():
            for _, obj in api.watch("Workload", timeout=60.0):
                with self._lock:
                    self._note(obj)

    def _note(self, obj: Obj) -> None:
        name, conditions = obj["metadata"]["name"], conditions_of(obj)
        trace, version = self._traces.get(name), int(obj["metadata"]["resourceVersion"])
        if trace is None or version <= self._versions.get(name, 0):
            return
        self._versions[name] = version
        is_evicted = conditions.get("Evicted") == "True"
        runs = conditions.get("Admitted") == "True" and not is_evicted and conditions.get("Finished") != "True"
        if runs != (name in trace.running) or is_evicted != (name in self._evicted):
            self._last_change = time.monotonic()
        (trace.running.add if runs else trace.running.discard)(name)
        if is_evicted and name not in self._evicted:
            trace.preempted.append(name)
            if len(trace.preempted) < LOOP:  # a loop ends here, so that the other traces go on
                self._to_release.add(name)
        (self._evicted.add if is_evicted else self._evicted.discard)(name)

    def _release(self, name: str) -> None:
        """Release the quota of a preempted workload, as its job's controller does once the pods have ended."""
        change_status(self._api, name, released, tries=_TRIES)


def _finished(obj: Obj) -> Obj:
    return {"conditions": with_conditions(obj, Finished=("True", "Succeeded"))}


@contextmanager
def real_kueue(folder: Path) -> Iterator[Kueue]:
    """Run an API server with Kueue; yield it with a flavor."""
    (server := folder / "server").mkdir()
    with (
        api_server(server, BINARIES) as kubeconfig,
        controllers(folder / "controllers", kubeconfig) as manifests,
    ):
        api = KubernetesApi(kubeconfig=kubeconfig)
        for controller in install.CONTROLLERS:
            source = manifests[f"XPK_{controller.name.upper()}_MANIFEST"]
            install.install(api, controller, pinned=False, source=source)
        api.create({"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "flavor"}, "spec": {}})
        kueue = Kueue(kubeconfig)
        try:
            yield kueue
        finally:
            kueue.close()
