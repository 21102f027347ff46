"""Checkpoint intervals that a run has chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.jobs.report.runs import RunWriter
from xpk.jobs.output.intervals import ChosenIntervals
from xpk.jobs.report.intervals import chosen_intervals
from xpk.jobs.report.key_figures import key_figures
from xpk.jobs.report.page import derive
from xpk.jobs.report.programs import read_folder


def run_with(folder: Path, *choices: dict[str, Any]) -> RunWriter:
    run = RunWriter(folder)
    run.train(0, 20)
    for choice in choices:
        run.now += 1
        run.event("intervals", (0, 0), **choice)
    return run


def test_the_newest_choice_counts(tmp_path: Path) -> None:
    first = {"step": 10, "every": 100, "local_every": 0, "step_seconds": 0.5}
    last = {"step": 20, "every": 1300, "local_every": 40, "step_seconds": 0.5, "mtbf_seconds": 3.6e4, "failures": 2}
    record = read_folder(run_with(tmp_path, first, last).write())
    expected = ChosenIntervals(
        step=20, every=1300, local_every=40, every_seconds=650.0, step_seconds=0.5, mtbf_seconds=36000.0, failures=2
    )
    assert chosen_intervals(record) == expected
    (figure,) = (one for one in key_figures(derive(record, end=None), 0) if one.name == "Checkpoint interval")
    assert (figure.value, figure.note) == ("1,300 steps", "chosen after step 20, 10 min 50 s, local ones every 40")


def test_a_run_with_fixed_intervals_has_none(tmp_path: Path) -> None:
    record = read_folder(run_with(tmp_path).write())
    assert chosen_intervals(record) is None
    assert "Checkpoint interval" not in [figure.name for figure in key_figures(derive(record, end=None), 0)]


def test_a_damaged_event_is_ignored(tmp_path: Path) -> None:
    assert chosen_intervals(read_folder(run_with(tmp_path, {"step": 10, "every": "often"}).write())) is None
