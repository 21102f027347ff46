"""Several runs beside each other in the report page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.jobs.report.pages import FACTS, Checker
from tests.jobs.report.runs import RunWriter, one_kill
from xpk.jobs.report.comparison import ComparedRun, comparison_plots
from xpk.jobs.report.page import derive, render_report
from xpk.jobs.report.programs import read_folder
from xpk.jobs.report.record import RunRecord


def trained(folder: Path, steps: int) -> RunRecord:
    """Return the record of a run without failures."""
    folder.mkdir(exist_ok=True)
    run = RunWriter(folder)
    run.train(0, steps)
    return read_folder(run.write())


def test_runs_are_shown_over_each_other_and_side_by_side(tmp_path: Path) -> None:
    record = read_folder(one_kill(tmp_path))
    other = replace(FACTS, workload="<b>other</b>", state="Failed", restarts=())
    html = render_report(record, FACTS, [(trained(tmp_path / "b", 10), other)])
    page = Checker(html)
    assert "Loss over steps (2 runs)" in page.text and page.text.count("<b>other</b>") == 3
    assert page.tags.count("b") == 0 and page.tags.count("script") == 1
    assert html.count('class="curve run-0"') > 2 and html.count('class="curve run-1"') > 2
    assert "✗ Failed" in page.text and "✓ Succeeded" in page.text
    alone = render_report(record, FACTS)
    assert "(2 runs)" not in alone and 'class="curve run-' not in alone


def test_a_run_without_two_steps_has_no_curve_but_keeps_its_number(tmp_path: Path) -> None:
    runs = [ComparedRun("none", None), ComparedRun("some", derive(trained(tmp_path, 10), end=None))]
    for plot in comparison_plots(runs):
        assert [series.meaning for series in plot.series] == ["run-1"]
    assert comparison_plots(runs[:1]) == []
