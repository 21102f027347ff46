"""Checkpoint intervals that a run has chosen itself (`checkpoint.every=auto`)."""

from __future__ import annotations

from xpk.jobs.output.intervals import ChosenIntervals, read_intervals
from xpk.jobs.report.record import RunRecord


def chosen_intervals(record: RunRecord) -> ChosenIntervals | None:
    """Return the newest intervals that the run has chosen, or None if they are fixed."""
    chosen = [event for events in record.events.values() for event in events if event.name == "intervals"]
    if not chosen:
        return None
    last = max(chosen, key=lambda event: event.time)
    return read_intervals(last.step, last.details)
