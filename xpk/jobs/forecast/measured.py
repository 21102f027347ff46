"""Assumptions of a forecast measured by a run: from the account that `xpk workload report` writes."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping

from xpk.jobs.forecast.assumptions import default_assumptions
from xpk.jobs.forecast.forecast import Job
from xpk.jobs.report.goodput import Cause, goodput, recoveries
from xpk.jobs.report.record import RunRecord
from xpk.model.accelerators import find_shape
from xpk.model.errors import NotFoundError
from xpk.model.status import WorkloadStatus
from xpk_shared.goodput.failures import FailureRate

_START = ("teardown", "start", "init", "data")


def job_of_run(record: RunRecord, status: WorkloadStatus, prior: FailureRate, *, end: float | None = None) -> Job:
    """Return the job of a run, with what it has measured; `end`: Unix seconds up to which it counts.

    Its restarts update the prior. Raises NotFoundError before the first step.
    """
    if not record.steps:
        raise NotFoundError(
            f"workload '{status.name}' has not finished a step",
            hint=f"`xpk workload status {status.name}`",
            resource=f"JobSet '{status.name}'",
        )
    shape = find_shape(status.accelerator_type)
    spent = goodput(record, end=end)
    seconds = spent.wall / 1e6 - spent.seconds(Cause.SUSPENDED)
    chips = status.num_slices * shape.chips
    source = f"workload {status.name}"
    step = statistics.median(line.seconds for line in record.steps)
    values = _saves(record) | ({} if record.is_elastic else _recoveries(record, status))
    named = {name: (value, source) for name, value in values.items()}
    if status.restarts:
        share = (_default_process_share() + status.restarts_in_place) / (1 + status.restarts)
        named["process_share"] = (share, f"{source}: {status.restarts_in_place} of {status.restarts} in place")
    return Job(
        name=status.name,
        tpu_type=status.accelerator_type,
        num_slices=status.num_slices,
        hosts_per_slice=status.hosts_per_slice,
        chips_per_slice=shape.chips,
        step_seconds=step,
        step_source=f"{source}, median",
        rate=prior.updated(status.restarts, chips * seconds / 3600),
        min_slices=status.min_slices,
        values=named,
    )


def _default_process_share() -> float:
    return default_assumptions(hosts_per_slice=1, num_slices=2, host_bytes=None)[0].process_share


def _saves(record: RunRecord) -> dict[str, float]:
    """Return the means of saves and commits in each tier; of a save, the slowest host counts."""
    blocked: dict[tuple[str, int, int], float] = defaultdict(float)
    taken: dict[tuple[str, int, int], float] = defaultdict(float)
    for events in record.events.values():
        for event in events:
            waited = event.details.get("blocked")
            if event.name in ("save", "local_save") and event.step is not None and isinstance(waited, int | float):
                key = event.name, event.attempt, event.step
                blocked[key] = max(blocked[key], waited)
                taken[key] = max(taken[key], event.seconds or 0.0)
    means = {}
    for event_name, tier in (("save", ""), ("local_save", "local_")):
        keys = [key for key in blocked if key[0] == event_name]
        if keys:
            means[f"{tier}save"] = statistics.fmean(blocked[key] for key in keys)
            means[f"{tier}commit"] = statistics.fmean(max(0.0, taken[key] - blocked[key]) for key in keys)
    return means


def _recoveries(record: RunRecord, status: WorkloadStatus) -> dict[str, float]:
    """Return the means of the parts of recoveries, as goodput depends on them; without those from several failures.

    The run does not record for each recovery whether pods were new: if most restarts were in place, all count as such.
    A recovery begins at the last finished step; on average, half a step had been computed when the failure occurred.
    """
    half_step = statistics.median(line.seconds for line in record.steps) / 2
    local_attempts = {
        event.attempt
        for events in record.events.values()
        for event in events
        if event.name == "restore" and event.details.get("source") == "local"
    }
    samples: dict[str, list[float]] = defaultdict(list)
    in_place = 2 * status.restarts_in_place >= status.restarts
    for recovery in recoveries(record):
        if recovery.attempt != recovery.failed_attempt + 1:
            continue
        parts = {part.name: part.seconds or 0.0 for part in recovery.parts}
        samples["detection" if in_place else "machine_detection"].append(parts["detection"] - half_step)
        samples["restart_processes" if in_place else "restart_pods"].append(_sum(parts, _START))
        samples["local_restore" if recovery.attempt in local_attempts else "restore"].append(parts["restore"])
        samples["compilation"].append(parts["compile"])
    return {name: max(0.0, statistics.fmean(values)) for name, values in samples.items()}


def _sum(parts: Mapping[str, float], names: Iterable[str]) -> float:
    return sum(parts[name] for name in names)
