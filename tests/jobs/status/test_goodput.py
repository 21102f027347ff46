"""Goodput in `workload status` equals that of the report, if the records are small enough."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.objects import ROOTS
from tests.jobs.report.runs import START, RunWriter, one_kill
from tests.jobs.status.progress import COMPLETED, shown, status_of
from xpk.cli.workload import views
from xpk.jobs.report.figures import account
from xpk.jobs.status.goodput import MAX_BYTES
from xpk.model.status import Phase


def test_goodput_equals_that_of_the_report(tmp_path: Path) -> None:
    status = status_of(one_kill(tmp_path), conditions=COMPLETED)
    assert status.phase is Phase.SUCCEEDED
    progress = shown(tmp_path, status)
    reported = account(status, "dev", ROOTS).figures["goodput"]
    assert progress.goodput == reported and 0.5 < reported < 1
    assert f"goodput    {reported:.1%} of the wall time" in views.status(status, progress, "dev")


def test_a_run_that_has_not_ended_is_accounted_until_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 30, step_seconds=0.5)
    run.write()
    monkeypatch.setattr("time.time", lambda: START + 30)
    assert shown(tmp_path, status_of(tmp_path)).goodput == 0.5


def with_intervals(folder: Path, **details: Any) -> Path:
    """Write a run that has chosen its checkpoint intervals."""
    run = RunWriter(folder)
    run.train(0, 20)
    run.event("intervals", (0, 0), step=10, every=1300, local_every=40, step_seconds=0.5, failures=2, **details)
    return run.write()


def test_a_status_names_the_chosen_intervals_and_what_they_rest_on(tmp_path: Path) -> None:
    status = status_of(with_intervals(tmp_path, save_seconds=2.1, local_save_seconds=0.1, mtbf_seconds=7500.0))
    progress = shown(tmp_path, status)
    assert progress.intervals is not None and progress.intervals.every == 1300
    words = (
        "checkpoint every 1,300 steps (10m50s), local ones every 40; chosen after step 10: "
        "0.5 s a step, 2.1 s a save, 0.1 s a local save, 2h05m between failures, 2 failures so far"
    )
    assert f"  {words}\n" in views.status(status, progress, "dev")


def test_the_intervals_of_elastic_slices_rest_on_losses_of_all_slices(tmp_path: Path) -> None:
    status = replace(status_of(with_intervals(tmp_path)), min_slices=1)
    assert "0.5 s a step, all slices lost 2 times\n" in views.status(status, shown(tmp_path, status), "dev")


def test_a_run_with_fixed_intervals_has_no_line_for_them(tmp_path: Path) -> None:
    status = status_of(one_kill(tmp_path))
    assert shown(tmp_path, status).intervals is None
    assert "chosen after" not in views.status(status, shown(tmp_path, status), "dev")


def test_records_beyond_the_limit_are_not_read(tmp_path: Path) -> None:
    status = status_of(one_kill(tmp_path), conditions=COMPLETED)
    events = tmp_path / "events" / "s1-h1.jsonl"
    os.truncate(events, MAX_BYTES)
    assert shown(tmp_path, status).goodput is None
    assert "goodput" not in views.status(status, shown(tmp_path, status), "dev")
    events.unlink()
    (tmp_path / "events" / "of-nobody.jsonl").symlink_to("/dev/zero")
    assert shown(tmp_path, status).goodput is not None


def test_objects_with_a_false_number_of_hosts_cause_no_reads(tmp_path: Path) -> None:
    assert shown(one_kill(tmp_path), status_of(tmp_path, replicas=10**9)).goodput is None


def test_metrics_of_another_program_have_no_goodput(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "loss": 7}\n')
    assert shown(tmp_path, status_of(tmp_path)).goodput is None


def test_unreadable_events_keep_the_progress(tmp_path: Path) -> None:
    status = status_of(one_kill(tmp_path))
    events = tmp_path / "events" / "s0-h0.jsonl"
    events.unlink()
    os.mkfifo(events)
    assert shown(tmp_path, status).step == 150 and shown(tmp_path, status).goodput is None
