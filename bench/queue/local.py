"""The local control plane's queue, driven by passes like its daemon's, without hosts."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

from bench.queue.load import CHIPS, CLASSES, QUOTA, Entry, Log
from tests.local.cases import ACCELERATOR, KUEUE, RESOURCE, jobset, node
from xpk.local import objects as o
from xpk.local import queue
from xpk.local.store import Store, Transaction

_ROUNDS = 20  # of a pass, as in the daemon
_LONGEST_PAUSE = 0.5


def run(folder: Path, log: Log, seconds: float) -> dict[str, Any]:
    """Submit the workloads and finish each after its time; return the cost of the passes."""
    store, waiting, due = Store(folder, create=True), deque(log.entries.values()), dict[str, float]()
    with store.transaction() as tx:
        _set_up(tx)
    start, cpu, passes, longest = time.monotonic(), time.process_time(), 0, 0.0
    while not log.is_done:
        now = time.monotonic()
        if now - start > seconds:
            raise TimeoutError(f"not done after {seconds:.0f} s")
        ended = [name for name, end in due.items() if end <= now]
        with store.transaction() as tx:
            while waiting and waiting[0].due <= now - start:
                _submit(tx, waiting.popleft())
            for name in ended:
                _finish(tx, log.entries[name])
                del due[name]
            for _ in range(_ROUNDS):
                before = tx.writes
                queue.reconcile(tx)
                if tx.writes == before:
                    break
            admitted = {_name(item): _is_admitted(item) for item in tx.list("Workload")}
        for name, is_admitted in admitted.items():
            if log.note(name, admitted=is_admitted):
                due.pop(name, None)
                if is_admitted:
                    due[name] = time.monotonic() + log.entries[name].kind.seconds
        passes, longest = passes + 1, max(longest, time.monotonic() - now)
        upcoming = [*due.values(), *([start + waiting[0].due] if waiting else [])]
        time.sleep(max(0.0, min(_LONGEST_PAUSE, min(upcoming, default=now) - time.monotonic())))
    return {"passes": passes, "longest_pass": round(longest, 3), "cpu_seconds": round(time.process_time() - cpu, 2)}


def _set_up(tx: Transaction) -> None:
    for pool in range(QUOTA):
        tx.put(node(pool, 0))
    quota = {"name": RESOURCE, "nominalQuota": QUOTA * CHIPS}
    group = {"coveredResources": [RESOURCE], "flavors": [{"name": "flavor", "resources": [quota]}]}
    preemption = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Never"}
    specs: dict[tuple[str, str], dict[str, Any]] = {
        ("ResourceFlavor", "flavor"): {"spec": {"nodeLabels": ACCELERATOR}},
        ("ClusterQueue", "cluster-queue"): {"spec": {"resourceGroups": [group], "preemption": preemption}},
        ("LocalQueue", "multislice-queue"): {"spec": {"clusterQueue": "cluster-queue"}},
        **{("WorkloadPriorityClass", kind.name): {"value": kind.priority} for kind in CLASSES},
    }
    for (kind, name), content in specs.items():
        meta = {"name": name, "namespace": "default"} if kind == "LocalQueue" else {"name": name}
        tx.put({"apiVersion": KUEUE, "kind": kind, "metadata": meta, **content})


def _submit(tx: Transaction, entry: Entry) -> None:
    obj = jobset(entry.name, "true", slices=entry.kind.slices, hosts=1, priority=entry.kind.name)
    obj["spec"]["suspend"] = True
    tx.put(obj)
    entry.created = time.monotonic()


def _finish(tx: Transaction, entry: Entry) -> None:
    obj = tx.get("JobSet", "default", entry.name)
    assert obj is not None
    obj["status"] = {**obj.get("status", {}), "terminalState": "Completed"}
    o.set_condition(obj, "Completed", True, "AllJobsCompleted", "all hosts finished")
    tx.put(obj)
    entry.finished = time.monotonic()


def _name(workload: dict[str, Any]) -> str:
    return o.label(workload, f"{o.JOBSET}jobset-name")


def _is_admitted(workload: dict[str, Any]) -> bool:
    return o.is_true(workload, "Admitted") and not o.is_true(workload, "Evicted")
