"""Runs that were suspended, preempted, or deleted and resumed, so that attempt numbers do not give the order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.report.pages import FACTS, Checker
from tests.jobs.report.runs import START, RunWriter
from xpk.jobs.report.goodput import Cause, attempts, goodput, lost_steps, recoveries, recovery_seconds
from xpk.jobs.report.incarnations import Life, number_lives
from xpk.jobs.report.page import render_report
from xpk.jobs.report.programs import read_folder
from xpk.jobs.report.record import HostId
from xpk.jobs.report.restart_lines import RestartFact


def resumed_after_delete(folder: Path) -> RunWriter:
    """One kill, then a deletion while it runs, then a resume: the attempts are 0, 1, 0."""
    run = RunWriter(folder)
    run.train(0, 100)
    run.kill((1, 1))
    run.train(90, 300)
    run.suspend(300, away=500.0)
    run.attempt = 0
    run.train(300, 330)
    run.done(330)
    run.write()
    return run


def suspended(folder: Path) -> RunWriter:
    """Suspended for 12 s after step 20, by a user or for a workload with a higher priority; attempt 0 occurs twice."""
    run = RunWriter(folder)
    run.train(0, 20)
    run.suspend(20)
    run.train(20, 40)
    run.done(40)
    run.write()
    return run


def test_a_resume_after_a_delete_continues_the_account(tmp_path: Path) -> None:
    resumed_after_delete(tmp_path)
    record = read_folder(tmp_path)
    assert [line.step for line in record.steps] == list(range(1, 331))
    assert lost_steps(record) == 10 == len(record.lost_steps)
    assert {line.attempt for line in record.steps if line.step > 300} == {2}
    assert record.attempts == (0, 1, 2) and record.restart_counts == {0: 0, 1: 1, 2: 0}
    assert [one.ended for one in attempts(record)] == ["host lost", "suspended", "done"]
    (recovery,) = recoveries(record)
    assert (recovery.failed_attempt, recovery.attempt) == (0, 1)
    assert recovery_seconds(record) == pytest.approx(1.0 + 2.0 + 2.0 + 1.0 + 3.0 + 0.5)
    account = goodput(record)
    assert account.seconds(Cause.SUSPENDED) == pytest.approx(500.0)
    assert account.seconds(Cause.DOWN) == pytest.approx(3.0)


def test_two_deletes_without_any_restart(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for begin in (0, 10, 20):
        run.bring_up(begin)
        run.steps(begin + 1, begin + 10)
        run.suspend(begin + 10)
    record = read_folder(run.write())
    assert [line.step for line in record.steps] == list(range(1, 31))
    assert record.lost_steps == () and recoveries(record) == ()
    assert record.restart_counts == {0: 0, 1: 0, 2: 0}


def test_a_resume_from_an_older_checkpoint_loses_later_steps(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 30)
    run.evaluate(30)
    run.now += 60.0  # deleted without a grace period
    run.train(20, 25)
    record = read_folder(run.write())
    assert [line.step for line in record.steps] == list(range(1, 26))
    assert lost_steps(record) == 10 == len({line.step for line in record.lost_steps})
    assert [line.attempt for line in record.lost_evals] == [0]
    assert goodput(record).seconds(Cause.SUSPENDED) == 0


def test_a_suspension_is_not_a_failure(tmp_path: Path) -> None:
    suspended(tmp_path)
    record = read_folder(tmp_path)
    assert lost_steps(record) == 0 and record.lost_steps == () and len(record.steps) == 40
    first, second = attempts(record)
    assert (first.ended, first.cause_host, second.ended) == ("suspended", None, "done")
    assert (second.restored_step, second.first_step) == (20, 21)
    account = goodput(record)
    assert account.seconds(Cause.SUSPENDED) == pytest.approx(12.0)
    assert account.microseconds[Cause.DOWN] == account.microseconds[Cause.LOST] == 0
    assert recoveries(record) == () and recovery_seconds(record) is None


def test_a_stop_before_the_first_step_saved_nothing(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.bring_up(0)
    run.all("preempt")
    run.now += 12.0
    run.train(0, 20)
    first, _ = attempts(read_folder(run.write()))
    assert (first.ended, first.reason) == ("suspended", "suspended or preempted, before the first step")


def test_a_lasting_suspension_counts_as_waiting(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 5)
    run.suspend(5, away=0.0)
    account = goodput(read_folder(run.write()), end=run.now + 30)
    assert account.seconds(Cause.SUSPENDED) == pytest.approx(30.0)


def test_a_preemption_in_which_some_hosts_ended_early(tmp_path: Path) -> None:
    """Hosts receive the signal one after the other; some may lose peers that have left."""
    run = RunWriter(tmp_path)
    run.train(0, 8)
    run.save(8)
    for who in run.everyone()[:3]:
        run.event("preempt", who, step=8)
    run.now += 0.5
    run.event("peer_lost", (1, 1), peer=0)
    run.now += 20.0
    run.train(8, 12)
    record = read_folder(run.write())
    assert [one.ended for one in attempts(record)] == ["suspended", "running"]
    assert "✕" not in render_report(record, replace(FACTS, restarts=())).split("<body>")[1]
    assert goodput(record).seconds(Cause.SUSPENDED) == pytest.approx(20.5)
    assert recoveries(record) == ()


def test_a_kill_then_a_suspension(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 30)
    run.kill((1, 0))
    run.train(20, 40)
    run.suspend(40)
    run.train(40, 50)
    run.kill((0, 1))
    run.train(40, 60)
    run.done(60)
    record = read_folder(run.write())
    assert record.restart_counts == {0: 0, 1: 1, 2: 1, 3: 2}
    assert [line.step for line in record.steps] == list(range(1, 61))
    assert lost_steps(record) == 20 == len(record.lost_steps)
    assert [one.ended for one in attempts(record)] == ["host lost", "suspended", "host lost", "done"]
    assert [(one.failed_attempt, one.attempt) for one in recoveries(record)] == [(0, 1), (2, 3)]
    account = goodput(record)
    assert account.seconds(Cause.SUSPENDED) == pytest.approx(12.0)
    assert account.seconds(Cause.DOWN) == pytest.approx(6.0)


def test_a_recovery_interrupted_by_a_suspension_has_no_duration(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 30)
    run.kill((1, 0))
    run.bring_up(0)
    run.all("preempt")
    run.now += 3600.0
    run.bring_up(0)
    run.kill((1, 0))
    run.train(0, 5)
    record = read_folder(run.write())
    (recovery,) = recoveries(record)
    assert (recovery.failed_attempt, recovery.attempt) == (2, 3)
    assert recovery.seconds < 60
    assert goodput(record).seconds(Cause.SUSPENDED) == pytest.approx(3600.0)


def test_a_run_that_was_done_and_resumed_for_more_steps(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 10)
    run.done(10)
    run.now += 100.0
    run.train(10, 20)
    run.done(20)
    record = read_folder(run.write())
    assert [one.ended for one in attempts(record)] == ["done", "done"]
    assert recoveries(record) == () and lost_steps(record) == 0
    assert goodput(record).seconds(Cause.DOWN) == 0


def drop_first_life(run: RunWriter, who: tuple[int, int]) -> None:
    """Remove a host's records before its second start."""
    lines = run.events[who]
    starts = [index for index, line in enumerate(lines) if json.loads(line)["event"] == "start"]
    del lines[: starts[1]]
    run.write()


@pytest.mark.parametrize("who", [(0, 0), (1, 1)])
def test_a_host_that_was_killed_before_it_could_write(tmp_path: Path, who: tuple[int, int]) -> None:
    run = suspended(tmp_path)
    drop_first_life(run, who)
    record = read_folder(tmp_path)
    assert {event.attempt for event in record.events[HostId(*who)]} == {1}
    assert goodput(record).seconds(Cause.SUSPENDED) == pytest.approx(12.0)
    assert len(record.steps) == 40 and record.lost_steps == ()


def test_attempts_without_events_are_distinguished_by_number(tmp_path: Path) -> None:
    lines = [
        {"time": 10.0 + index, "attempt": attempt, "step": step, "loss": 1.0, "step_seconds": 1.0}
        for index, (attempt, step) in enumerate([(0, 1), (0, 2), (2, 2), (2, 3)])
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = read_folder(tmp_path)
    assert record.restart_counts == {0: 0, 2: 2}
    assert [(line.attempt, line.step) for line in record.steps] == [(0, 1), (2, 2), (2, 3)]


def life(begin: float, attempt: int = 0, up: float | None = None) -> Life:
    return Life(begin=begin, attempt=attempt, up=up)


@pytest.mark.parametrize(
    ("hosts", "numbers"),
    [
        # B missed the first attempt and starts first in the second, which never became ready before.
        ([[life(0), life(100)], [life(99)]], [[0, 1], [1]]),
        # C too; the starts of the first are far apart, but all were connected.
        (
            [[life(0, up=31), life(41)], [life(30, up=31), life(42)], [life(40)]],
            [[0, 1], [0, 1], [1]],
        ),
        # B missed the restart in the middle.
        ([[life(0), life(10, 1), life(20, 2)], [life(0.5), life(20.5, 2)]], [[0, 1, 2], [0, 2]]),
        # B's first process started after A was already restarted.
        ([[life(0), life(5, 1)], [life(6), life(7, 1)]], [[0, 1], [0, 1]]),
        # Resumed on more hosts: the new one starts first.
        ([[life(0, up=2), life(60)], [life(59)]], [[0, 1], [1]]),
        # Clocks that differ.
        ([[life(0, up=5), life(600)], [life(10, up=15), life(610)]], [[0, 1], [0, 1]]),
    ],
)
def test_attempts_of_hosts_are_aligned(hosts: list[list[Life]], numbers: list[list[int]]) -> None:
    assert number_lives(hosts) == numbers


_lives = st.lists(
    st.lists(st.builds(Life, begin=st.floats(0, 100), attempt=st.integers(0, 2), up=st.none() | st.floats(0, 100))),
    max_size=4,
)


@given(_lives)
def test_a_host_appears_once_in_an_attempt_for_any_records(hosts: list[list[Life]]) -> None:
    numbers = number_lives(hosts)
    assert [len(result) for result in numbers] == [len(lives) for lives in hosts]
    for result in numbers:
        assert all(before < after for before, after in pairwise(result))
    used = {number for result in numbers for number in result}
    assert used == set(range(len(used)))
    of_number: dict[int, set[int]] = {}
    for result, lives in zip(numbers, hosts, strict=True):
        for number, one in zip(result, lives, strict=True):
            of_number.setdefault(number, set()).add(one.attempt)
    assert all(len(message) == 1 for message in of_number.values())


@pytest.mark.parametrize("scenario", [suspended, resumed_after_delete])
def test_the_page_shows_a_suspension(tmp_path: Path, scenario: Callable[[Path], RunWriter]) -> None:
    run = scenario(tmp_path)
    page = render_report(read_folder(tmp_path), FACTS)
    text = Checker(page).text
    assert "Suspended" in text and "suspended or preempted" in text
    assert 'class="swatch suspended"' in page and "--suspended:" in page
    assert page.count('<rect class="suspended"') == 2 * len(run.everyone())


def test_a_page_without_failures_shows_none(tmp_path: Path) -> None:
    suspended(tmp_path)
    facts = replace(FACTS, restarts=())
    text = Checker(render_report(read_folder(tmp_path), facts)).text
    assert "failure" not in text and "✕" not in text


def test_causes_from_the_control_plane_are_shown_with_their_restart(tmp_path: Path) -> None:
    """After a resume it knows only the restarts since then: here none of the first, one of the second."""
    run = RunWriter(tmp_path)
    run.train(0, 9)
    run.kill((1, 1))
    run.train(0, 9)
    run.suspend(9)
    run.attempt = 0
    run.train(9, 19)
    message = int(run.now) - START + 2
    run.kill((0, 1))
    run.train(9, 19)
    facts = replace(FACTS, restarts=(RestartFact(cause="the newest one", time=START + message),))
    page = render_report(read_folder(run.write()), facts)
    rows = [row for row in page.split("<tr>") if "host 1 died" in row or "suspended or preempted" in row]
    rows = [row for row in rows if 'class="cause"' in row]
    assert ["the newest one" in row for row in rows] == [False, False, True]
