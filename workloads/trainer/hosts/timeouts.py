"""Watched waits that may take longer than a step (watchdog.py)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from trainer.hosts.job import Job
from trainer.hosts.time_limits import TimeLimits
from xpk_shared.storage import in_bucket


class Busy(Protocol):
    """A task that a host has its own part in, such as a checkpoint."""

    @property
    def busy(self) -> bool:
        """True if this host itself is working, rather than waiting for others."""


def limits(job: Job) -> TimeLimits:
    """Return the time limits of this host."""
    return TimeLimits(job.config, job.measurements, job.host.is_elastic, in_bucket(str(job.out)))


def storage(job: Job, subject: str, step: int, part: Busy, kind: str = "") -> AbstractContextManager[None]:
    """Watch a wait for a checkpoint; this host is at fault if its own part hangs. `kind`: of a measured wait."""
    min_seconds = limits(job).storage(kind)
    return job.watchdog.waiting(subject, step, is_own=lambda: part.busy, min_seconds=min_seconds)


def compilation(
    job: Job, subject: str, step: int, is_own: Callable[[], bool], program: str = ""
) -> AbstractContextManager[None]:
    """Watch a wait for a program; this host is at fault if it is compiling, rather than waiting for process 0."""
    min_seconds = limits(job).compilation(program)
    return job.watchdog.waiting(f"the compilation of {subject}", step, is_own=is_own, min_seconds=min_seconds)


def data(job: Job, subject: str, *, is_own: bool) -> AbstractContextManager[None]:
    """Watch a wait for the data set, or this host's copy of it, before the first step."""
    return job.watchdog.waiting(subject, 0, is_own=lambda: is_own, min_seconds=job.config.observe.data_hang_seconds)
