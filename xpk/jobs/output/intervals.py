"""Checkpoint intervals that a run has chosen itself, and what they rest on: the details of its event `intervals`.

Their content is untrusted: any program may have written it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xpk.jobs.output.json_lines import read_number, read_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenIntervals:
    """The newest choice, with the measurements it rests on; an interval that the run does not choose is its fixed one.

    Failures of elastic slices are losses of all slices, because only these need a checkpoint.
    """

    step: int  # step after which they were chosen
    every: int  # `checkpoint.every`, in steps
    local_every: int  # `checkpoint.local_every`, in steps; 0: no local checkpoints
    every_seconds: float | None  # the time of `every` steps; null if unknown
    step_seconds: float | None = None  # measured seconds of a step
    save_seconds: float | None = None  # measured seconds that steps wait for a checkpoint; null before the first save
    local_save_seconds: float | None = None  # the same of a local checkpoint
    mtbf_seconds: float | None = None  # estimated mean time between failures; null for elastic slices before one
    failures: int | None = None  # failures of the run until the choice


def read_intervals(step: int | None, details: Mapping[str, Any]) -> ChosenIntervals | None:
    """Return the intervals of an event, chosen after `step`; None if it is damaged."""
    every, local_every = read_whole(details, "every"), read_whole(details, "local_every")
    if every is None or local_every is None:
        return None
    seconds = read_number(details, "step_seconds")
    return ChosenIntervals(
        step=step or 0,
        every=every,
        local_every=local_every,
        every_seconds=None if seconds is None else round(every * seconds, 1),
        step_seconds=seconds,
        save_seconds=read_number(details, "save_seconds"),
        local_save_seconds=read_number(details, "local_save_seconds"),
        mtbf_seconds=read_number(details, "mtbf_seconds"),
        failures=read_whole(details, "failures"),
    )
