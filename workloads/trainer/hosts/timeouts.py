"""What a host may wait for longer than for a step, with the limit that each has, said to its watchdog (watchdog.py)."""

from collections.abc import Callable
from typing import Protocol

from trainer.hosts.job import Job


class Busy(Protocol):
    """What a host has a part of its own in, such as a checkpoint."""

    @property
    def busy(self) -> bool:
        """Whether this host itself is at work, and does not just wait for others."""


def storage(job: Job, what: str, at: int, part: Busy) -> None:
    """Say that this host waits for a checkpoint; it is to blame where its own part of it does not end."""
    least = job.config.checkpoint.hang_seconds
    job.watchdog.waits(what, at, own=lambda: part.busy, least=least)


def compilation(job: Job, what: str, at: int, own: Callable[[], bool]) -> None:
    """Say that this host waits for a program; it is to blame where it compiles it itself, and not process 0."""
    job.watchdog.waits(f"the compilation of {what}", at, own=own, least=job.config.observe.compile_hang_seconds)


def data(job: Job, what: str, *, own: bool) -> None:
    """Say that this host waits for the data set, or for its copy of it, before the first step."""
    job.watchdog.waits(what, 0, own=lambda: own, least=job.config.observe.data_hang_seconds)
