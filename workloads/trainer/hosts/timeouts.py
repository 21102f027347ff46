"""Watched waits that may take longer than a step (watchdog.py)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from trainer.hosts.job import Job


class Busy(Protocol):
    """A task that a host has its own part in, such as a checkpoint."""

    @property
    def busy(self) -> bool:
        """True if this host itself is working, rather than waiting for others."""


def storage(job: Job, what: str, at: int, part: Busy) -> AbstractContextManager[None]:
    """Watch a wait for a checkpoint; this host is at fault if its own part of it does not end."""
    least = job.config.checkpoint.hang_seconds
    return job.watchdog.waiting(what, at, own=lambda: part.busy, least=least)


def compilation(job: Job, what: str, at: int, own: Callable[[], bool]) -> AbstractContextManager[None]:
    """Watch a wait for a program; this host is at fault if it compiles it itself, rather than process 0."""
    least = job.config.observe.compile_hang_seconds
    return job.watchdog.waiting(f"the compilation of {what}", at, own=own, least=least)


def data(job: Job, what: str, *, own: bool) -> AbstractContextManager[None]:
    """Watch a wait for the data set, or this host's copy of it, before the first step."""
    return job.watchdog.waiting(what, 0, own=lambda: own, least=job.config.observe.data_hang_seconds)
