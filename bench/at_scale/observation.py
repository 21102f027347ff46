"""Times at which a workload's objects appear, from watches of the API server."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import urllib3

from bench.at_scale.nodes import pool_of
from bench.at_scale.server import Row, Server, query, selecting

PODS, JOBS = "/api/v1/namespaces/default/pods", "/apis/batch/v1/namespaces/default/jobs"
_WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
_ENDPOINT_SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
_NAME, _PHASE, _NODE, _ADMITTED = 0, 2, 6, 3  # columns
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_POLL_SECONDS = 0.5


@dataclass(slots=True)
class Marks:
    """Times by pod or Job, on the clock of `time.monotonic`."""

    admitted: float = 0.0
    jobs: dict[str, float] = field(default_factory=dict)
    created: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)

    def see_pod(self, change: str, row: Row, now: float) -> None:
        """Record a pod's state."""
        name, node = row[_NAME], row[_NODE]
        self.created.setdefault(name, now)
        if node != "<none>":
            self.bound.setdefault(name, now)
            self.nodes[name] = node
        if row[_PHASE] == "Running" and change != "DELETED":
            self.running.setdefault(name, now)
        elif change == "DELETED":
            self.running.pop(name, None)

    def see_job(self, change: str, row: Row, now: float) -> None:
        """Record a Job."""
        self.jobs.setdefault(row[_NAME], now)

    def see_workload(self, change: str, row: Row, now: float) -> None:
        """Record the admission by Kueue."""
        if row[_ADMITTED] == "True" and not self.admitted:
            self.admitted = now

    def split_slices(self) -> int:
        """Return the number of slices whose hosts are on more than one node pool, or share one with another slice."""
        pools = defaultdict(set)
        for pod in self.running:
            pools[pod.rpartition("-")[0].rpartition("-")[0]].add(pool_of(self.nodes[pod]))
        users = Counter(pool for used in pools.values() for pool in used)
        return sum(len(used) > 1 or any(users[pool] > 1 for pool in used) for used in pools.values())


@contextmanager
def watching(server: Server, name: str, labels: Mapping[str, str] | None = None) -> Iterator[Marks]:
    """Record the objects of a workload until the end of the block; its pods only with these labels."""
    marks, stopped = Marks(), threading.Event()
    selector = {JOBSET_LABEL: name, **(labels or {})}
    watches: list[tuple[str, Callable[[str, Row, float], None]]] = [
        (query(PODS, labelSelector=selecting(selector), includeObject="None"), marks.see_pod),
        (query(JOBS, labelSelector=f"{JOBSET_LABEL}={name}", includeObject="None"), marks.see_job),
        (query(_WORKLOADS, includeObject="None"), marks.see_workload),
    ]
    for path, see in watches:
        threading.Thread(target=_follow, args=(server, path, see, stopped), daemon=True).start()
    try:
        yield marks
    finally:
        stopped.set()


def published_hosts(server: Server, subdomain: str) -> set[str]:
    """Return the host names that have an address in a headless service's EndpointSlices."""
    listed = server.call("GET", query(_ENDPOINT_SLICES, labelSelector=f"kubernetes.io/service-name={subdomain}"))
    return {
        endpoint.get("hostname", "")
        for item in listed["items"]
        for endpoint in item.get("endpoints") or ()
        if endpoint.get("addresses")
    }


def await_condition(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether a condition becomes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _follow(server: Server, path: str, see: Callable[[str, Row, float], None], stopped: threading.Event) -> None:
    """Watch until stopped. A server that is short of time ends the watches of slow clients: list again."""
    while not stopped.is_set():
        try:
            rows, version = server.rows(path)
            for row in rows:
                see("ADDED", row, time.monotonic())
            for change, row in server.watch_rows(path, version):
                see(change, row, time.monotonic())
                if stopped.is_set():
                    return
        except (urllib3.exceptions.HTTPError, ValueError, KeyError):
            stopped.wait(_POLL_SECONDS)
