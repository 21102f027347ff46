"""The environment of a conformance case: quota and a namespace of its own, on a cluster of either kind."""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from tests.waiting import until
from xpk.api.base import Obj, ObjectApi
from xpk.jobs import lifecycle, logs
from xpk.jobs.create.create import create_workload, preview
from xpk.jobs.create.options import host_command
from xpk.jobs.host_logs import LogQuery
from xpk.jobs.status import reader
from xpk.model import names
from xpk.model.accelerators import find_shape
from xpk.model.errors import MissingToolError, NotFoundError, TimedOutError, UsageError
from xpk.model.specs import ClusterSpec, QueueSpec, SliceQuota, Target, WorkloadSpec
from xpk.model.status import Phase, WorkloadStatus
from xpk.render import render_peer_secret, render_priority_limit, render_queue, render_queues, render_workload

SHAPE = find_shape("v5litepod-8")  # slices of two hosts
FOREVER = "trap 'exit 143' TERM; echo up; sleep 1000 & wait"
_BLAME = re.compile(r"host (s\d+/h\d+) ended with exit code (\d+)")
_SECONDS = 30.0
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a workload, in all fields that must be equal; `why` is the reason of its JobSet.

    `exits` has the exit codes of the remaining pods by host: hosts that were ended because of another one have none.
    `blamed` is the host that the status names, and its exit code.
    """

    phase: Phase
    terminal: str
    why: str
    exits: Mapping[str, int]
    restarts: int = 0
    counted: int = 0
    blamed: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The resources of a case. `neighbor` is a second namespace, whose queue shares the quota of the first.

    `patience` is the factor of timeouts relative to those for processes.
    """

    api: ObjectApi
    target: Target
    namespace: str
    neighbor: str
    patience: float = 1

    def submit(
        self,
        name: str,
        script: str,
        *,
        slices: int = 1,
        namespace: str | None = None,
        is_supervised: bool = True,
        **more: Any,
    ) -> Obj:
        """Create a workload whose hosts run `script` in bash; `more` are fields of its spec.

        Without supervisors, only the control plane decides on the end of hosts.
        """
        given: dict[str, Any] = {
            "command": host_command(script, ()),
            "image": self.target.trainer_image or "none",
            "termination_grace_seconds": 10,
            **more,
        }
        spec = WorkloadSpec(
            name=name,
            namespace=namespace or self.namespace,
            shape=SHAPE,
            num_slices=slices,
            target=self.target,
            **given,
        )
        assert spec.problems() == []
        if is_supervised:
            create_workload(self.api, spec, cluster="any")
        else:
            *_, jobset = render_workload(spec)
            (job,) = jobset["spec"]["replicatedJobs"]
            (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
            container |= {"command": [*spec.command], "args": []}
            for obj in (jobset, *render_peer_secret(spec)):
                self.api.create(obj)
        return self.api.get("JobSet", name, spec.namespace)

    def status(self, name: str, namespace: str | None = None) -> WorkloadStatus:
        """Return the status of a workload."""
        return reader.find(self.api, name, namespace or self.namespace)

    def until(
        self,
        name: str,
        wanted: Callable[[WorkloadStatus], bool],
        *,
        namespace: str | None = None,
        seconds: float = _SECONDS,
    ) -> WorkloadStatus:
        """Wait until a workload's status satisfies a condition, and return it."""
        actual: list[WorkloadStatus] = []

        def matches() -> bool:
            actual[:] = [self.status(name, namespace)]
            return wanted(actual[0])

        self.hold(matches, seconds=seconds, report=lambda: actual)
        return actual[0]

    def running(self, name: str, namespace: str | None = None) -> WorkloadStatus:
        """Wait until all hosts run."""
        return self.until(name, lambda status: status.phase is Phase.RUNNING, namespace=namespace)

    def queued(self, name: str, reason: str = "", namespace: str | None = None) -> WorkloadStatus:
        """Wait until a workload is queued for a reason that contains the text."""

        def is_so(status: WorkloadStatus) -> bool:
            return status.phase is Phase.QUEUED and reason in status.reason

        return self.until(name, is_so, namespace=namespace)

    def ended(self, name: str, *, seconds: float = 2 * _SECONDS) -> Outcome:
        """Wait for the end of a workload and of its last host; return the outcome."""
        with suppress(TimedOutError):
            lifecycle.wait(self.api, name, self.namespace, timeout=seconds * self.patience)
        actual = self.until(name, lambda status: status.phase.is_final and self._are_still(status), seconds=_SECONDS)
        jobset = self.jobset(name)
        last = next(c for c in jobset["status"]["conditions"] if c["type"] == jobset["status"]["terminalState"])
        return Outcome(
            phase=actual.phase,
            terminal=jobset["status"]["terminalState"],
            why=last["reason"],
            exits={host.label: host.exit_code for host in actual.hosts if host.exit_code is not None},
            restarts=actual.restarts,
            counted=actual.restarts_counted,
            blamed=(blame[1], int(blame[2])) if (blame := _BLAME.match(actual.reason)) else None,
        )

    def _are_still(self, status: WorkloadStatus) -> bool:
        """Return whether the remaining hosts have ended, and all stopped hosts are deleted."""
        there = {host.pod for host in status.hosts}
        pods = [pod["metadata"] for pod in self.api.list("Pod", self.namespace) if pod["metadata"]["name"] in there]
        return len(pods) == len(status.hosts) and not (
            any(meta.get("deletionTimestamp") for meta in pods) or any(host.exit_code is None for host in status.hosts)
        )

    def said(self, name: str, *, previous: bool = False, **wanted: Any) -> dict[str, list[str]]:
        """Return the output of each host that has a pod."""
        there = {host.label for host in self.status(name).hosts}
        lines: dict[str, list[str]] = {label: [] for label in there}
        for line in logs.read_logs(self.api, name, self.namespace, LogQuery(**wanted), previous=previous):
            if (label := f"s{line.slice}/h{line.host}") in there:
                lines[label].append(line.text)
        return lines

    def await_line(self, name: str, text: str, hosts: int = 2) -> None:
        """Wait until this number of hosts have written a line: then their traps are set."""
        self.hold(lambda: sum(text in lines for lines in self.said(name).values()) == hosts)

    def hold(self, what: Callable[[], Any], *, seconds: float = _SECONDS, report: Callable[[], object] = str) -> Any:
        """Wait until something is true and return it."""
        return until(what, seconds=seconds * self.patience, every=_POLL_SECONDS * self.patience, report=report)

    def jobset(self, name: str) -> Obj:
        """Return a workload's JobSet."""
        return self.api.get("JobSet", name, self.namespace)

    def pods(self, name: str) -> list[Obj]:
        """Return a workload's pods."""
        return self.api.list("Pod", self.namespace, {"jobset.sigs.k8s.io/jobset-name": name})

    def kueue_workload(self, name: str) -> Obj:
        """Return the Workload object of Kueue, or of its local counterpart."""
        uid = self.jobset(name)["metadata"]["uid"]
        actual: Obj = self.hold(
            lambda: next(
                (
                    w
                    for w in self.api.list("Workload", self.namespace)
                    if w["metadata"]["ownerReferences"][0]["uid"] == uid
                ),
                None,
            )
        )
        return actual

    def a_second(self) -> None:
        """Let a second pass: servers store creation times in seconds, and queues sort by them."""
        begin = int(time.time())
        self.hold(lambda: int(time.time()) > begin)

    def set_up(self, slices: int) -> None:
        """Create a ClusterQueue for the namespaces, as in the manifests."""
        spec = ClusterSpec(name="any", shape=SHAPE, num_slices=slices)
        for namespace in (self.namespace, self.neighbor):
            for obj in render_queues(spec, namespace=namespace):
                if obj["kind"] == "ClusterQueue":
                    obj["metadata"]["name"] = self.namespace
                elif obj["kind"] == "LocalQueue":
                    obj["spec"]["clusterQueue"] = self.namespace
                self.api.apply(obj)

    def split(self, own: int, theirs: int, *, reclaim: str = "Any", borrowing_limit: int | None = None) -> None:
        """Give each namespace its own quota of slices that they lend to each other.

        The neighbor's queue has the name of its namespace.
        """
        for name, slices, limit in ((self.namespace, own, None), (self.neighbor, theirs, borrowing_limit)):
            quota = SliceQuota(shape=SHAPE, num_slices=slices, borrowing_limit=limit)
            for obj in render_queue(QueueSpec(name=name, namespaces=(name,), quotas=(quota,), reclaim=reclaim)):
                if obj["kind"] == "ClusterQueue":
                    obj["spec"]["cohortName"] = self.namespace
                self.api.apply(obj)

    def limit_priority(self, limit: str) -> None:
        """Limit the priorities that the neighbor's own queue accepts."""
        annotations = {names.MAX_PRIORITY_ANNOTATION: limit}
        self.api.patch("ClusterQueue", self.neighbor, {"metadata": {"annotations": annotations}})
        with suppress(MissingToolError):  # the local control plane enforces it without a policy
            for obj in render_priority_limit(self.neighbor, limit):
                self.api.apply(obj)

    def takes(self, priority: str, queue: str) -> bool:
        """Return whether a namespace's own queue accepts a workload of a priority."""
        spec = WorkloadSpec(
            name="any", namespace=queue, queue=queue, priority=priority, shape=SHAPE, num_slices=1, target=self.target,
            command=("true",), image="none",
        )  # fmt: skip
        try:
            preview(self.api, spec)
        except UsageError as error:
            assert names.limit_message(queue, "medium") in error.message
            return False
        return True

    def clear(self) -> None:
        """Delete all workloads, and wait until their hosts have ended."""
        both = (self.namespace, self.neighbor)
        for namespace in both:
            for jobset in self.api.list("JobSet", namespace):
                with suppress(NotFoundError):
                    self.api.delete("JobSet", jobset["metadata"]["name"], namespace, grace_seconds=0)
        self.hold(lambda: not any(self.api.list("Pod", namespace) for namespace in both))


@dataclass(frozen=True, slots=True)
class Case:
    """A case of behavior: its check, and the number of slices of its queue."""

    check: Callable[[Ground], None]
    slices: int

    def __str__(self) -> str:
        return self.check.__name__


CASES: list[Case] = []


def case(slices: int = 1) -> Callable[[Callable[[Ground], None]], Callable[[Ground], None]]:
    """Add a function to the cases, with a queue of this number of slices."""

    def add(function: Callable[[Ground], None]) -> Callable[[Ground], None]:
        CASES.append(Case(function, slices))
        return function

    return add


class SideBySide:
    """Runs cases concurrently within the cluster's slices: the largest first, then others that fit."""

    def __init__(self, cases: Iterable[Case], slices: int, run: Callable[[Case], None]) -> None:
        self._free, self._change, self._run = slices, threading.Condition(), run
        ordered = sorted(cases, key=lambda entry: -entry.slices)
        self._waiting = [*ordered]
        self._pool = ThreadPoolExecutor(max_workers=len(ordered) or 1)
        self._futures: dict[Case, Future[None]] = {entry: self._pool.submit(self._one, entry) for entry in ordered}

    def result(self, of: Case) -> None:
        """Wait for a case and raise its error."""
        error = self._futures[of].exception()
        if error:
            raise AssertionError("".join(traceback.format_exception(error))) from None

    def close(self) -> None:
        """Start no further case; wait for those that are running."""
        with self._change:
            self._waiting.clear()
            self._change.notify_all()
        self._pool.shutdown()

    def _one(self, entry: Case) -> None:
        with self._change:
            self._change.wait_for(lambda: self._next() is entry or entry not in self._waiting)
            if entry not in self._waiting:
                return
            self._waiting.remove(entry)
            self._free -= entry.slices
            self._change.notify_all()
        try:
            self._run(entry)
        finally:
            with self._change:
                self._free += entry.slices
                self._change.notify_all()

    def _next(self) -> Case | None:
        return next((entry for entry in self._waiting if entry.slices <= self._free), None)


def selected(request: pytest.FixtureRequest) -> list[Case]:
    """Return the cases that a module's tests select."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path)
    actual = (item.callspec.params["case"] for item in items if hasattr(item, "callspec"))
    return [entry for entry in actual if isinstance(entry, Case)]
