"""Checkpoint intervals that a run has chosen itself (`checkpoint.every=auto`)."""

from __future__ import annotations

from dataclasses import dataclass

from xpk.jobs.report.record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenIntervals:
    """The newest choice; an interval that the run does not choose is its fixed one."""

    step: int  # step after which they were chosen
    every: int  # `checkpoint.every`, in steps
    local_every: int  # `checkpoint.local_every`, in steps; 0: no local checkpoints
    every_seconds: float | None  # the time of `every` steps; null if unknown


def chosen_intervals(record: RunRecord) -> ChosenIntervals | None:
    """Return the newest intervals that the run has chosen, or None if they are fixed."""
    chosen = [event for events in record.events.values() for event in events if event.name == "intervals"]
    if not chosen:
        return None
    last = max(chosen, key=lambda event: event.time)
    every, local_every, seconds = (last.details.get(name) for name in ("every", "local_every", "step_seconds"))
    if not isinstance(every, int) or not isinstance(local_every, int):
        return None
    return ChosenIntervals(
        step=last.step or 0,
        every=every,
        local_every=local_every,
        every_seconds=round(every * seconds, 1) if isinstance(seconds, int | float) else None,
    )
