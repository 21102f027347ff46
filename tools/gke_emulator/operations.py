"""Long-running operations: their concurrency, progress and end."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from google.cloud.container_v1 import Operation

from tools.gke_emulator.clock import Clock, Schedule, rfc3339
from tools.gke_emulator.faults import Faults
from tools.gke_emulator.names import Target
from tools.gke_emulator.options import SECONDS, Options
from tools.gke_emulator.refusal import Refusal, canonical, condition
from tools.gke_emulator.store import OperationPb, Store, Work

Status = Operation.Status
Type = Operation.Type
# While one of these runs, no other operation on the cluster may run; they wait for all others.
_ALONE = {Type.CREATE_CLUSTER, Type.DELETE_CLUSTER, Type.UPDATE_CLUSTER, Type.UPGRADE_MASTER}
_CANCELLABLE = {Type.UPGRADE_NODES}


class OperationError(Exception):
    """An operation that ends with an error: the canonical code's name, the message, and the conditions."""

    def __init__(self, code: str, message: str, conditions: list[tuple[str, str]] | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.conditions = code, message, conditions or []


Effect = Callable[[Work], None]


class Operations:
    """The operations of all projects."""

    def __init__(self, options: Options, clock: Clock, store: Store, schedule: Schedule, faults: Faults) -> None:
        self._options, self._clock, self._store = options, clock, store
        self._schedule, self._faults = schedule, faults
        self._workers = ThreadPoolExecutor(max_workers=8, thread_name_prefix="gke-operation")
        self._running: dict[str, dict[str, Work]] = {}  # by the cluster's path, then by their own path
        self._ending: set[str] = set()
        self.effects: dict[int, Effect] = {}
        self.failures: dict[int, Callable[[Work, OperationError], None]] = {}

    def check(self, kind: int, target: Target) -> None:
        """Reject an operation that GKE does not run concurrently with the running ones."""
        running = list(self._running.get(target.of_cluster.path, {}).values())
        limit = self._options.concurrent_operations
        for work in running:
            other = work.message
            same_pool = work.args["path"] == target.path
            alone = kind in _ALONE or other.operation_type in _ALONE
            metadata = Type.SET_NODE_POOL_MANAGEMENT in (kind, other.operation_type)
            if alone or (same_pool and not metadata) or not self._options.parallel_pools:
                raise Refusal.busy(other.name)
        if limit is not None and len(running) >= limit:
            raise Refusal(
                "RESOURCE_EXHAUSTED",
                f'Too many operations: cluster "{target.cluster}" hits the concurrent operations quota {limit}, '
                "please try again later.",
                "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED",
            )

    def begin(self, kind: int, target: Target, nodes: int = 0, **args: Any) -> Any:
        """Start an operation that `check` accepted; `nodes` is the number of nodes that it creates or deletes."""
        now = self._clock.now()
        name = f"operation-{int(now * 1000)}-{uuid.uuid4()}"
        place = Target(target.project, target.location, operation=name)
        message = OperationPb(
            name=name, operation_type=kind, status=Status.PENDING, location=target.location, zone=target.location,
            self_link=self._numbered(place).link, target_link=self._numbered(target).link, start_time=rfc3339(now),
        )  # fmt: skip
        usual = self._options.seconds.get(Type(kind).name, SECONDS.get(Type(kind).name, 60.0))
        seconds: float | None = usual + nodes * self._options.seconds_per_node
        fault = self._faults.operation(Type(kind).name, target.pool or target.cluster)
        if fault and fault.code:
            args |= {"fail": [fault.code, fault.message]}
        elif fault or args.get("never"):
            seconds = None
        work = Work(message, seconds, now, {"path": target.path, "nodes": nodes, **args})
        self._store.put_work(place.path, work)
        self._follow(place.path, work)
        return message

    def resume(self) -> None:
        """Continue operations that ran when the emulator ended."""
        for path, work in self._store.operations.items():
            if work.message.status != Status.DONE:
                self._follow(path, work)

    def running(self) -> int:
        """Return the number of running operations."""
        with self._store.lock:
            return sum(len(item) for item in self._running.values())

    def running_on(self, cluster: str) -> int:
        """Return the number of running operations on a cluster."""
        return len(self._running.get(cluster, {}))

    def find(self, target: Target) -> Any:
        """Return an operation with its current progress."""
        work = self._store.operations.get(target.path)
        if work is None:
            raise Refusal.not_found(target.path)
        return self._shown(work)

    def all(self, project: str, location: str) -> list[Any]:
        """Return the operations of a location, or of all for `-`."""
        before = f"projects/{project}/locations/" + ("" if location == "-" else f"{location}/")
        return [self._shown(work) for path, work in self._store.operations.items() if path.startswith(before)]

    def cancel(self, target: Target) -> None:
        """Start to cancel an operation; only upgrades of nodes can be cancelled."""
        work = self._store.operations.get(target.path)
        if work is None:
            raise Refusal.not_found(target.path)
        kind = Type(work.message.operation_type)
        if kind not in _CANCELLABLE:
            raise Refusal.invalid(f"Operation type {Type(kind).name} cannot be cancelled")
        if work.message.status != Status.DONE:
            work.message.status = Status.ABORTING
            work.args["fail"] = ["CANCELLED", "Operation was aborted by the user."]
            self._store.put_work(target.path, work)
            self._schedule.at(self._clock.now() + self._options.pending, lambda: self._submit(target.path, work))

    def stop(self) -> None:
        """Wait for operations that are ending."""
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _follow(self, path: str, work: Work) -> None:
        cluster = path_of_cluster(work.args["path"])
        self._running.setdefault(cluster, {})[path] = work
        self._schedule.at(work.begun + self._options.pending, lambda: self._run(path, work))
        if work.seconds is not None:
            end = work.begun + self._options.pending + work.seconds
            self._schedule.at(end, lambda: self._submit(path, work))

    def _run(self, path: str, work: Work) -> None:
        with self._store.lock:
            if work.message.status == Status.PENDING:
                work.message.status = Status.RUNNING
                self._store.put_work(path, work)

    def _submit(self, path: str, work: Work) -> None:
        self._workers.submit(self._end, path, work)

    def _end(self, path: str, work: Work) -> None:
        with self._store.lock:
            if work.message.status == Status.DONE or path in self._ending:
                return
            self._ending.add(path)
        kind = work.message.operation_type
        error: OperationError | None = None
        try:
            if "fail" in work.args:
                raise OperationError(*work.args["fail"])
            self.effects[kind](work)
        except OperationError as raised:
            error = raised
        except Exception as raised:  # a fault of the emulator itself: reported, so that the operation does not hang
            error = OperationError("INTERNAL", f"emulator: {type(raised).__name__}: {raised}")
        with self._store.together():
            if error and kind in self.failures:
                self.failures[kind](work, error)
            self._done(work, error)
            self._ending.discard(path)
            self._running[path_of_cluster(work.args["path"])].pop(path, None)
            self._store.put_work(path, work)
            self._store.tick(self._clock.now())

    def _done(self, work: Work, error: OperationError | None) -> None:
        message = work.message
        message.status = Status.DONE
        message.end_time = rfc3339(self._clock.now())
        if error is None:
            return
        message.status_message = message.detail = error.message
        message.error.code = canonical(error.code)
        message.error.message = error.message
        where = message.nodepool_conditions if "/nodePools/" in work.args["path"] else message.cluster_conditions
        where.extend(condition(code, name, error.message) for code, name in error.conditions)

    def _shown(self, work: Work) -> Any:
        message = OperationPb()
        message.CopyFrom(work.message)
        total = work.args["nodes"]
        if total and message.status != Status.DONE:
            gone = max(0.0, self._clock.now() - work.begun - self._options.pending)
            share = 0.0 if work.seconds is None else min(1.0, gone / work.seconds) if work.seconds else 1.0
            message.progress.status = message.status
            message.progress.metrics.add(name="nodes done", int_value=min(total - 1, int(share * total)))
            message.progress.metrics.add(name="nodes total", int_value=total)
        return message

    def _numbered(self, target: Target) -> Target:
        return replace(target, project=str(self._options.project_number))


def path_of_cluster(path: str) -> str:
    """Return the path of the cluster of a cluster or node pool."""
    return path.partition("/nodePools/")[0]
