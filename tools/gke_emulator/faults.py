"""Injectable faults, as plain data, so that a command line or a file can name them."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

Outcome = Literal["stockout", "quota", "partial", "internal", "never"]


@dataclass(frozen=True, slots=True)
class CallFault:
    """Calls that fail: the `nth` ones to `method` (from 1), or each with `probability`.

    `method` is a gRPC method (CreateNodePool), or METHOD and path pattern of a REST call (GET */regions/*).
    `code` is the name of a canonical gRPC code: ABORTED is HTTP's 409, RESOURCE_EXHAUSTED 429, UNAVAILABLE 503.
    `applied`: the call does its work and only its answer is lost.
    """

    method: str
    code: str = "UNAVAILABLE"
    nth: tuple[int, ...] = ()
    probability: float = 0.0
    message: str = "The service is currently unavailable."
    applied: bool = False


@dataclass(frozen=True, slots=True)
class PoolFault:
    """Failures of node pools.

    They are chosen by `name` (a pattern) or as the `nth` ones created (from 1; pools that come with a cluster are
    neither counted nor chosen).

    stockout: no node; the operation ends with GCE_STOCKOUT. quota: no node; GCE_QUOTA_EXCEEDED. partial: `nodes` of
    them, then GCE_STOCKOUT. internal: no node, INTERNAL. never: the operation does not end.
    `times`: how many tries of one pool fail.
    """

    outcome: Outcome
    name: str = "*"
    nth: tuple[int, ...] = ()
    times: int = 1_000_000
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class OperationFault:
    """Operations of a type (CREATE_CLUSTER, DELETE_NODE_POOL, ...) that fail or never end.

    `name` is a pattern for the cluster, or the pool where there is one. `code` fails it with that canonical code;
    without, it never ends.
    """

    type: str
    name: str = "*"
    code: str = ""
    message: str = "Internal error."
    times: int = 1_000_000


Fault = CallFault | PoolFault | OperationFault
_KINDS: dict[str, type[Fault]] = {"call": CallFault, "pool": PoolFault, "operation": OperationFault}


def fault_of(value: dict[str, Any]) -> Fault:
    """Create a fault from data: its `kind` (call, pool, operation) and fields. Raises ValueError or TypeError."""
    fields = dict(value)
    kind = _KINDS.get(fields.pop("kind", ""))
    if kind is None:
        raise ValueError(f"a fault's kind is one of {', '.join(_KINDS)}")
    values: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in fields.items()}
    return kind(**values)


@dataclass
class Faults:
    """The faults of one emulator, and their counters."""

    declared: list[Fault]
    seed: int = 0
    _pools: list[str] = field(default_factory=list)
    _tries: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Inject a fault from now on; its calls are counted from here."""
        with self._lock:
            self.declared.append(fault)

    def clear(self) -> None:
        """Remove all faults and counters."""
        with self._lock:
            self.declared.clear()
            self._tries.clear()

    def call(self, method: str) -> CallFault | None:
        """Count a call; return its fault."""
        with self._lock:
            first_fault = None
            for index, fault in enumerate(self.declared):
                if not isinstance(fault, CallFault) or not fnmatchcase(method, fault.method):
                    continue
                count = self._count(index, "call")
                if count in fault.nth or (fault.probability and self._random.random() < fault.probability):
                    first_fault = first_fault or fault
            return first_fault

    def pool(self, name: str) -> PoolFault | None:
        """Count the creation of a node pool; return its fault."""
        with self._lock:
            if name not in self._pools:
                self._pools.append(name)
            number = self._pools.index(name) + 1
            for index, fault in enumerate(self.declared):
                if isinstance(fault, PoolFault) and fnmatchcase(name, fault.name):
                    if fault.nth and number not in fault.nth:
                        continue
                    if self._count(index, name) <= fault.times:
                        return fault
            return None

    def operation(self, kind: str, name: str) -> OperationFault | None:
        """Count an operation; return its fault."""
        with self._lock:
            for index, fault in enumerate(self.declared):
                meets = isinstance(fault, OperationFault) and fault.type == kind and fnmatchcase(name, fault.name)
                if isinstance(fault, OperationFault) and meets and self._count(index, name) <= fault.times:
                    return fault
            return None

    def _count(self, index: int, name: str) -> int:
        self._tries[index, name] = self._tries.get((index, name), 0) + 1
        return self._tries[index, name]
