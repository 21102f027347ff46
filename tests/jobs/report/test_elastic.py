"""Goodput, lost steps, restarts and the page of runs with elastic slices."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.jobs.report.elastic_runs import ElasticWriter, two_losses
from tests.jobs.report.pages import Checker
from tests.jobs.report.runs import RunWriter
from xpk.jobs.report.goodput import Cause, attempts, goodput, lost_steps, recoveries
from xpk.jobs.report.page import ReportFacts, render_report
from xpk.jobs.report.programs import read_folder
from xpk.jobs.report.record import HostId, RunRecord
from xpk.jobs.report.restart_lines import RestartFact
from xpk.jobs.report.slice_losses import seconds_on_fewer, slice_losses


def seconds_by_cause(record: RunRecord) -> dict[Cause, float]:
    """Return the causes that took time."""
    account = goodput(record)
    return {cause: account.seconds(cause) for cause in Cause if account.microseconds[cause]}


def test_steps_continue_while_slices_are_lost(tmp_path: Path) -> None:
    record = read_folder(two_losses(tmp_path).write())
    (only,) = attempts(record)
    assert (only.ended, only.first_step, only.last_step, only.restored_step) == ("done", 1, 100, 0)
    assert (len(record.steps), len(record.lost_steps), lost_steps(record)) == (100, 0, 0)
    assert recoveries(record) == ()
    assert seconds_by_cause(record) == {
        Cause.INIT: 2.0,
        Cause.COMPILE: 3.0,
        Cause.RESTORE: 1.75,
        Cause.STEPS: 50.0,
        Cause.IDLE: 0.5,
    }


def test_each_loss_has_its_slice_its_cause_and_its_absence(tmp_path: Path) -> None:
    record = read_folder(two_losses(tmp_path).write())
    losses = slice_losses(record)
    assert [(loss.slice, loss.step, loss.joined_step) for loss in losses] == [(1, 20, 40), (0, 60, 100)]
    assert [(loss.until or 0) - loss.since for loss in losses] == [10.0, 20.0]
    assert [(loss.ended, loss.host) for loss in losses] == [("host lost", HostId(1, 0)), ("host lost", HostId(0, 0))]
    assert seconds_on_fewer(record, attempts(record)) == 30.0


def test_a_slice_that_fails_again_before_it_joins_is_lost_once(tmp_path: Path) -> None:
    run = ElasticWriter(tmp_path)
    run.begin()
    run.train_steps(10)
    run.lose(2)
    run.start(2)
    run.train_steps(20)
    run.of(2, "fail", reason="OSError: disk full")
    run.attempts[2] += 1
    run.start(2)
    run.train_steps(20)
    run.join(2)
    run.finish()
    (loss,) = slice_losses(read_folder(run.write()))
    assert (loss.slice, loss.step, loss.joined_step) == (2, 10, 50)
    assert (loss.until or 0) - loss.since == 20.25


def test_a_lost_peer_is_a_host_of_the_same_slice(tmp_path: Path) -> None:
    run = ElasticWriter(tmp_path, slices=2, hosts=2)
    run.begin()
    run.train_steps(10)
    run.event("peer_lost", (1, 0), peer=1)
    run.lose(1)
    run.train_steps(10)
    (loss,) = slice_losses(read_folder(run.write()))
    assert (loss.host, loss.until) == (HostId(1, 1), None)


def test_steps_before_the_loss_of_all_slices_are_lost_once(tmp_path: Path) -> None:
    run = ElasticWriter(tmp_path, slices=2)
    run.begin()
    run.train_steps(20)
    run.lose(1)
    run.train_steps(10)
    run.attempts[0] += 1
    run.active = []
    run.now += 4.0
    run.start(1)
    run.start(0)
    run.now += 5.0
    run.found(1, 25)
    run.join(0)
    run.train_steps(15)
    run.finish()
    record = read_folder(run.write())
    first, second = attempts(record)
    assert (first.ended, first.last_step, second.restored_step, second.first_step) == ("host lost", 30, 25, 26)
    assert (lost_steps(record), len(record.lost_steps), len(record.steps)) == (5, 5, 40)
    spent = seconds_by_cause(record)
    assert (spent[Cause.STEPS], spent[Cause.LOST], spent[Cause.DOWN]) == (20.0, 2.5, 4.0)
    assert [loss.slice for loss in slice_losses(record)] == []
    (recovery,) = recoveries(record)
    assert recovery.seconds == pytest.approx(4.0 + 5.0 + 1.0 + 0.25 + 0.5)


def test_a_wait_for_slices_is_down_time(tmp_path: Path) -> None:
    run = ElasticWriter(tmp_path, slices=2, min_slices=2)
    run.begin()
    run.train_steps(10)
    run.lose(1)
    run.now += 3.0
    run.start(1)
    run.now += 5.0
    run.join(1)
    run.train_steps(10)
    run.finish()
    record = read_folder(run.write())
    (only,) = attempts(record)
    assert (only.ended, lost_steps(record)) == ("done", 0)
    spent = seconds_by_cause(record)
    assert (spent[Cause.STEPS], spent[Cause.DOWN], spent[Cause.INIT]) == (10.0, 3.0, 4.0)


def test_a_slice_that_has_just_failed_does_not_end_the_attempt(tmp_path: Path) -> None:
    run = ElasticWriter(tmp_path, slices=2)
    run.begin()
    run.train_steps(10)
    run.of(1, "fail", reason="OSError: disk full")
    run.lose(1)
    run.train_steps(1)
    (only,) = attempts(read_folder(run.write()))
    assert only.ended == "running"


def test_a_step_that_two_leading_slices_wrote_counts_once(tmp_path: Path) -> None:
    run = two_losses(tmp_path)
    run.metrics.insert(62, run.metrics[60])
    record = read_folder(run.write())
    assert (len(record.steps), len(record.lost_steps)) == (100, 0)


def test_clocks_of_hosts_may_differ(tmp_path: Path) -> None:
    """The clock of the slice that leads after the loss of all slices is 20 s late."""
    run = ElasticWriter(tmp_path, slices=2)
    run.begin()
    run.train_steps(30)
    run.attempts = [1, 1]
    run.now += 10.0
    for number in (0, 1):
        run.start(number)
    run.now += 5.0
    run.found(0, 20)
    lines = len(run.metrics)
    run.train_steps(20)
    run.metrics[lines:] = [json.dumps(json.loads(line) | {"time": json.loads(line)["time"] - 20}) for line in
                           run.metrics[lines:]]  # fmt: skip
    record = read_folder(run.write())
    assert [line.step for line in record.steps] == list(range(1, 41))
    assert [line.step for line in record.lost_steps] == list(range(21, 31))


def test_attempts_from_before_the_run_had_elastic_slices_are_single_ones(tmp_path: Path) -> None:
    former = RunWriter(tmp_path, slices=2, hosts=1)
    former.train(0, 20)
    former.suspend(20)
    run = ElasticWriter(tmp_path, slices=2)
    run.now, run.metrics, run.events = former.now, former.metrics, former.events
    run.begin(20)
    run.train_steps(10)
    record = read_folder(run.write())
    assert [(one.first_step, one.ended) for one in attempts(record)] == [(1, "suspended"), (21, "running")]


def test_the_page_shows_active_slices_and_every_loss(tmp_path: Path) -> None:
    record = read_folder(two_losses(tmp_path).write())
    since = slice_losses(record)[0].since
    facts = ReportFacts(
        workload="demo", cluster="dev", accelerator="v5litepod-8", slices=4, hosts_per_slice=1, chips_per_host=2,
        state="Succeeded", restarts=(RestartFact(cause="s1/h0 ended with exit code 137", time=since + 2, slice=1),),
    )  # fmt: skip
    page = Checker(render_report(record, facts))
    assert "Active slices over wall time" in page.text
    assert "4 of 4" in page.text and "30.0 s on fewer" in page.text
    assert page.text.count("died; the other slices continued") == 2
    assert "s1/h0 ended with exit code 137" in page.text
    assert "1 attempt, 2 of single slices" in page.text
    titles = re.findall(r"slice \d host 0: (?:init|down)\w* [\d.]+ s[^<]*", render_report(record, facts))
    assert titles.count("slice 0 host 0: down 5.00 s") == 2, "the absence has no bar on each of the two drawings"
    assert titles.count("slice 1 host 0: initialization 2.00 s (attempt 2)") == 2


@pytest.mark.parametrize("content", ["", "not JSON\n", '{"slices": [99]}\n'])
def test_a_record_without_valid_changes_is_read_as_any_other(tmp_path: Path, content: str) -> None:
    folder = two_losses(tmp_path).write()
    (folder / "slices.jsonl").write_text(content)
    record = read_folder(folder)
    assert not record.is_elastic and slice_losses(record) == ()
