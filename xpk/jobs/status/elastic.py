"""Elastic slices in the objects of a workload: whether it has them, restarts of single Jobs, and its phase.

JobSet recreates only the Job of a failed slice; the other slices continue. Pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from xpk.api.base import Obj
from xpk.api.slice_restarts import has_elastic_slices, variables
from xpk.api.text import counted
from xpk.jobs.status.fields import PREFIX, label, number
from xpk.model.specs import MAX_SLICES
from xpk.model.status import HostStatus, Phase
from xpk_shared.supervisor.names import MIN_SLICES


def min_slices(jobset: Obj) -> int | None:
    """Return the smallest number of slices with which a workload trains, None if its slices are not elastic.

    A JobSet that only restarts single Jobs, without the number in its environment, needs one slice.
    """
    values = (str(item.get("value")) for item in variables(jobset, MIN_SLICES))
    valid = (int(value) for value in values if value.isdecimal() and 1 <= int(value[:9]) <= MAX_SLICES)
    return next(valid, 1 if has_elastic_slices(jobset) else None)


def restart_counts(jobset: Obj) -> tuple[int, int]:
    """Return the number of restarts, of the JobSet and of single Jobs, and how many of them count."""
    status = jobset.get("status", {})
    parts = status.get("replicatedJobsStatus") or []
    of_jobs, counted_of_jobs = (
        sum(int(count) for part in parts for count in part.get(key) or [])
        for key in ("jobRestarts", "jobRestartsCountTowardsMax")
    )
    return status.get("restarts", 0) + of_jobs, status.get("restartsCountTowardsMax", 0) + counted_of_jobs


def job_attempt_of(pod: Obj) -> int:
    """Return how often the Job of a pod had been restarted when the pod was created."""
    return number(label(pod, f"{PREFIX}/job-restart-attempt"))


def phase_of(
    hosts: Iterable[HostStatus], minimum: int, num_slices: int, hosts_per_slice: int, *, is_restart: bool
) -> tuple[Phase, str] | None:
    """Return the phase of elastic slices of which some are not running, and its reason.

    The workload runs with `minimum` slices. Returns None if it starts for the first time, with fewer.
    """
    up = Counter(host.slice for host in hosts if host.phase in ("Running", "Succeeded"))
    active = sum(count >= hosts_per_slice for count in up.values())
    if active >= minimum:
        return Phase.RUNNING, f"{active} of {counted(num_slices, 'slice')} running"
    return (Phase.RESTARTING, waiting_words(active, num_slices, minimum)) if is_restart else None


def waiting_words(active: int, num_slices: int, minimum: int) -> str:
    """Return why a workload with too few active slices does not train."""
    return f"waiting for slices: {active} of {num_slices} active, requires {minimum}"
