"""Reports of programs other than the bundled trainer."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.objects import ROOTS
from tests.jobs.status.progress import COMPLETED, shown, status_of
from xpk.cli.workload import views
from xpk.jobs.report.figures import account, write_page
from xpk.jobs.report.forecast import run_pace
from xpk.jobs.report.goodput import Cause, attempts, goodput, lost_steps, recoveries
from xpk.jobs.report.programs import read_folder
from xpk.model.errors import NotFoundError
from xpk.model.status import Phase
from xpk_shared.event_files import encode_event, frame_record

START = 1_800_000_000.0


def steps(
    first: int, last: int, at: float, attempt: int | None = 0, every: int = 1, **more: Any
) -> list[dict[str, Any]]:
    """Return the lines of steps that take half a second each; the first ends at `at`, the run has 100."""
    own = {} if attempt is None else {"attempt": attempt}
    return [
        {"time": START + at + 0.5 * (step - first), **own, "step": step, "steps": 100, "loss": 5 / step, **more}
        for step in range(first, last + 1, every)
    ]


def write(folder: Path, *lines: dict[str, Any]) -> Path:
    (folder / "progress.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def one_restart(folder: Path) -> Path:
    """Write 100 steps from second 10; the program dies after step 60, and starts 5 s later from step 40."""
    again = {"attempt": 1, "started": START + 44.5}
    first = [{"attempt": 0, "started": START}, *steps(1, 60, 10.0)]
    return write(folder, *first, again, {**again, "resumed_step": 40}, *steps(41, 100, 47.0, 1))


def test_seconds_have_causes_and_steps_that_a_restart_undid_are_lost(tmp_path: Path) -> None:
    record = read_folder(one_restart(tmp_path))
    assert [step.step for step in record.steps] == list(range(1, 101))
    assert [step.step for step in record.lost_steps] == list(range(41, 61)) and lost_steps(record) == 20
    account = goodput(record)
    seconds = {str(cause): account.seconds(cause) for cause in Cause if account.microseconds[cause]}
    assert seconds == {"steps": 50.0, "lost": 10.0, "init": 9.5 + 2.0, "down": 5.0}
    first, second = attempts(record)
    assert (first.ended, first.reason, first.last_step, second.restored_step) == ("host lost", "a host died", 60, 40)
    (recovery,) = recoveries(record)
    assert recovery.seconds == pytest.approx(7.5)


def test_a_program_that_logs_every_tenth_step_has_the_same_account(tmp_path: Path) -> None:
    first, second = steps(10, 60, 14.5, every=10), steps(50, 100, 51.5, 1, every=10)
    record = read_folder(write(tmp_path, *first, {"attempt": 1, "started": START + 44.5}, *second))
    assert lost_steps(record) == 20 and [step.step for step in record.lost_steps] == [50, 60]
    account = goodput(record)
    assert (account.seconds(Cause.STEPS), account.seconds(Cause.LOST)) == (50.0, 10.0)


def test_the_lines_of_a_shell_without_attempts_are_divided_by_their_steps(tmp_path: Path) -> None:
    record = read_folder(write(tmp_path, *steps(1, 60, 0.5, None), *steps(41, 80, 40.0, None)))
    assert (lost_steps(record), len(attempts(record)), record.steps[-1].step) == (20, 2, 80)


def test_a_program_that_was_suspended_has_not_failed(tmp_path: Path) -> None:
    again = steps(61, 70, 100.0, 0, started=START + 99)
    record = read_folder(write(tmp_path, *steps(1, 60, 0.5, 0, started=START), *again))
    first, _ = attempts(record)
    assert first.ended == "suspended" and lost_steps(record) == 0
    assert goodput(record).seconds(Cause.SUSPENDED) == 69.0 and not goodput(record).microseconds[Cause.DOWN]


def test_the_page_has_the_curve_and_other_quantities(tmp_path: Path) -> None:
    write(
        tmp_path, *steps(1, 50, 1.0, temperature=0.5, examples=32), {"step": 50, "eval_loss": 0.25, "time": START + 99}
    )
    outcome = account(status_of(tmp_path, conditions=COMPLETED), "dev", ROOTS)
    assert (outcome.figures["initial_loss"], outcome.figures["final_loss"]) == (5.0, 0.1)
    assert (outcome.figures["eval_loss"], outcome.figures["step_seconds"]["p50"]) == (0.25, 0.5)
    page = write_page(outcome, tmp_path / "page.html").read_text()
    assert all(
        text in page for text in ("Loss over steps", ">temperature<", ">examples per second<", "Evaluation loss")
    )


def test_a_program_that_logs_no_loss_has_no_figure_of_it(tmp_path: Path) -> None:
    write(tmp_path, *({"time": START + step, "step": step, "steps": 9} for step in range(1, 9)))
    outcome = account(status_of(tmp_path), "dev", ROOTS)
    assert outcome.figures["final_loss"] is None and outcome.figures["steps"] == 8
    page = write_page(outcome, tmp_path / "page.html").read_text()
    assert "not finite" not in page and "<dt>Loss</dt>" not in page
    assert "loss" not in views.status(status_of(tmp_path), shown(tmp_path, status_of(tmp_path)), "dev")


def test_event_files_make_a_report(tmp_path: Path) -> None:
    events = [encode_event(step, {"train/loss": 8 / step}, START + step) for step in range(1, 41)]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "events.out.tfevents.1800000000.host").write_bytes(b"".join(map(frame_record, events)))
    outcome = account(status_of(tmp_path, conditions=COMPLETED), "dev", ROOTS)
    assert (outcome.figures["steps"], outcome.figures["final_loss"]) == (40, pytest.approx(0.2))
    assert outcome.figures["seconds_by_cause"]["steps"] == 40.0


def test_lines_without_a_time_are_progress_but_no_report(tmp_path: Path) -> None:
    write(tmp_path, {"step": 1, "loss": 2}, {"step": 2, "loss": 1})
    assert shown(tmp_path, status_of(tmp_path)).step == 2
    with pytest.raises(NotFoundError, match="has logged no step with a time: 2 lines have none, or are damaged"):
        account(status_of(tmp_path), "dev", ROOTS)


def test_the_pace_of_a_run_includes_its_restarts_but_no_suspension(tmp_path: Path) -> None:
    assert run_pace(read_folder(one_restart(tmp_path))) == pytest.approx((76.5 - 10.0) / 99)
    again = steps(61, 70, 100.0, 0, started=START + 99)
    record = read_folder(write(tmp_path, *steps(1, 60, 0.5, 0, started=START), *again))
    assert run_pace(record) == pytest.approx((104.5 - 0.5 - 69.0) / 69)
    assert run_pace(read_folder(write(tmp_path, *steps(1, 1, 0.5)))) is None


def test_the_status_shows_when_a_run_ends_and_when_it_has_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = {"attempt": 1, "started": START + 44.5}
    write(tmp_path, *steps(1, 60, 10.0), again, {**again, "resumed_step": 40}, *steps(41, 80, 47.0, 1))
    running = replace(status_of(tmp_path), phase=Phase.RUNNING)
    monkeypatch.setattr("time.time", lambda: START + 67)
    progress = shown(tmp_path, running)
    assert (progress.eta_seconds, progress.ends) == (10.0, "2027-01-15T08:01:16Z")
    assert progress.ends_latest == "2027-01-15T08:01:20Z"
    text = views.status(running, progress, "dev")
    assert "ends about 08:01Z, in 9s; in 13s at the rate of the whole run with its restarts" in text
    monkeypatch.setattr("time.time", lambda: START + 66.5 + 300)
    assert "no step for 5m00s" in views.status(running, shown(tmp_path, running), "dev")


def test_a_loss_that_is_not_finite_is_shown_as_such(tmp_path: Path) -> None:
    record = read_folder(write(tmp_path, *steps(1, 5, 1.0), {"step": 6, "time": START + 9, "loss": None}))
    assert math.isnan(record.steps[-1].loss) and record.steps[-1].has_loss
