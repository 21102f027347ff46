"""State of the machines behind nodes, as their provider knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, runtime_checkable

from xpk.api.base import Objs


class MachineState(StrEnum):
    """State of a machine. Only `GONE` guarantees that it runs nothing and never resumes."""

    RUNNING = "running"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Machine:
    """State of a machine, in the provider's own words, and the time at which it stopped if that is known."""

    state: MachineState
    words: str
    stopped: datetime | None = None


@runtime_checkable
class Machines(Protocol):
    """Optional part of a provider that knows the state of machines.

    `quiet_seconds`: a node's machine is asked for once the node has not renewed its lease for so long.
    """

    quiet_seconds: float

    def machines(self, name: str, nodes: Objs) -> Mapping[str, Machine]:
        """Return the machines of a cluster's nodes, by the node's name; UNKNOWN for those without an answer.

        Raises XpkError if the provider does not answer.
        """
        ...
