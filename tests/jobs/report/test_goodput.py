"""Goodput, lost steps and recoveries of runs with known times."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.jobs.report.runs import START, RunWriter, one_kill
from xpk.jobs.report.goodput import Cause, attempts, goodput, lost_steps, recoveries, recovery_seconds
from xpk.jobs.report.programs import read_folder
from xpk.jobs.report.record import Event, HostId, RunRecord, StepRecord


def test_an_empty_run_has_no_goodput() -> None:
    account = goodput(RunRecord())
    assert account.wall == 0 and account.goodput == 0.0
    assert attempts(RunRecord()) == () and lost_steps(RunRecord()) == 0
    assert recovery_seconds(RunRecord()) is None


def test_an_undisturbed_run(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.bring_up(0, init=2.0, restore=1.0, compile_=3.0)
    run.steps(1, 20, step_seconds=0.5)
    run.save(20, seconds=0.25)
    run.evaluate(20, seconds=0.75)
    run.done(20)
    record = read_folder(run.write())
    account = goodput(record)
    seconds = {cause: account.seconds(cause) for cause in Cause if account.microseconds[cause]}
    assert seconds == {
        Cause.INIT: 2.0,
        Cause.RESTORE: 1.0,
        Cause.COMPILE: 3.0,
        Cause.STEPS: 10.0,
        Cause.SAVE: 0.25,
        Cause.EVAL: 0.75,
        Cause.IDLE: 0.5,
    }
    assert account.goodput == pytest.approx(10 / 17.5)
    (only,) = attempts(record)
    assert (only.ended, only.restored_step, only.first_step, only.last_step) == ("done", 0, 1, 20)
    assert lost_steps(record) == 0 and recoveries(record) == ()


def test_one_kill(tmp_path: Path) -> None:
    record = read_folder(one_kill(tmp_path))
    first, second = attempts(record)
    assert (first.ended, first.cause_host, first.last_step) == ("host lost", HostId(1, 1), 68)
    assert (second.ended, second.restored_step, second.first_step) == ("done", 50, 51)
    assert lost_steps(record) == 18 == len(record.lost_steps)
    account = goodput(record)
    assert account.seconds(Cause.STEPS) == pytest.approx(150 * 0.4)
    assert account.seconds(Cause.LOST) == pytest.approx(18 * 0.4)
    assert account.seconds(Cause.DOWN) == pytest.approx(0.4 + 1.4)
    (recovery,) = recoveries(record)
    assert recovery.seconds == pytest.approx(0.4 + 1.4 + 2.8 + 0.9 + 1.2 + 0.4)
    legs = {part.name: part.seconds for part in recovery.parts}
    assert legs == pytest.approx(
        {
            "detection": 0.4,
            "teardown": 0.0,
            "start": 1.4,
            "init": 2.8,
            "data": 0.0,
            "restore": 0.9,
            "compile": 1.2,
            "first step": 0.4,
        }
    )


def test_later_events_of_a_host_declared_dead_are_ignored(tmp_path: Path) -> None:
    folder = one_kill(tmp_path)
    before = read_folder(folder)
    # Its node was frozen and its workload continued elsewhere; now it resumes and misses the others.
    line = {"time": START + 9_999, "event": "peer_lost", "slice": 1, "host": 1, "attempt": 0, "peer": 0}
    with (folder / "events" / "s1-h1.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    after = read_folder(folder)
    assert attempts(after) == attempts(before)
    assert goodput(after) == goodput(before)
    assert recoveries(after) == recoveries(before)


def test_compilation_after_the_first_step_is_not_part_of_the_recovery(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 4)
    run.kill((1, 1))
    run.bring_up(0, compile_=1.5)
    run.steps(1, 4)
    run.now += 2.5
    run.all("compile", seconds=2.5, program="evaluate")
    (recovery,) = recoveries(read_folder(run.write()))
    legs = {part.name: part.seconds for part in recovery.parts}
    assert legs["compile"] == pytest.approx(1.5) and legs["first step"] == pytest.approx(0.5)


def test_a_restore_that_waits_for_a_compilation_counts_as_compilation(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 4)
    run.kill((1, 1))
    run.all("start", pid=1)
    run.all("init", seconds=0.0)
    run.all("data", seconds=0.0)
    run.now += 0.3
    run.all("choose", seconds=0.3, step=0)
    run.now += 7.0
    run.all("compile", seconds=7.0, program="train")
    run.now += 1.0
    run.all("compile", seconds=0.9, program="spread")
    run.now += 0.25
    run.all("restore", step=0, seconds=1.25, source="checkpoint", read=True)
    run.steps(1, 4)
    record = read_folder(run.write())
    (recovery,) = recoveries(record)
    legs = {part.name: part.seconds for part in recovery.parts}
    assert (legs["restore"], legs["compile"], legs["first step"]) == pytest.approx((0.65, 7.9, 0.5))
    account = goodput(record)
    assert account.seconds(Cause.COMPILE) == pytest.approx(3.0 + 7.9)
    assert account.seconds(Cause.RESTORE) == pytest.approx(1.0 + 0.65)


def test_a_restore_excludes_the_compilation_within_it(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 4)
    run.kill((1, 1))
    run.bring_up(0, restore=0.5, compile_=7.0)
    run.now += 0.5
    run.all("restore", step=0, seconds=8.0, source="checkpoint", read=True)
    run.steps(1, 4)
    (recovery,) = recoveries(read_folder(run.write()))
    legs = {part.name: part.seconds for part in recovery.parts}
    assert (legs["restore"], legs["compile"]) == pytest.approx((1.0, 7.0))


def test_a_known_kill_time_begins_the_recovery(tmp_path: Path) -> None:
    record = read_folder(one_kill(tmp_path))
    (by_default,) = recoveries(record)
    killed = by_default.since + 0.125
    assert recovery_seconds(record, kill_time=killed) == pytest.approx(by_default.seconds - 0.125)
    assert recovery_seconds(record, kill_time=START - 99) == by_default.seconds


def test_a_kill_before_any_checkpoint_loses_everything(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 7)
    run.kill((0, 0))
    run.train(0, 10)
    run.done(10)
    record = read_folder(run.write())
    assert lost_steps(record) == 7
    first, second = attempts(record)
    assert first.cause_host == HostId(0, 0) and second.restored_step == 0
    assert goodput(record).seconds(Cause.LOST) == pytest.approx(3.5)


def test_a_host_stopped_by_sigterm_loses_nothing(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 7)
    run.save(7)
    run.all("preempt", step=7)
    run.now += 2.0
    run.attempt = 1
    run.train(7, 10)
    run.done(10)
    record = read_folder(run.write())
    first, _ = attempts(record)
    assert first.ended == "preempted" and first.cause_host is None
    assert lost_steps(record) == 0 and record.lost_steps == ()
    account = goodput(record)
    assert account.microseconds[Cause.LOST] == 0
    assert account.seconds(Cause.DOWN) == pytest.approx(2.0)


def test_two_restarts_and_an_attempt_that_never_stepped(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 30)
    run.kill((1, 0))
    run.all("start")  # this attempt dies before its restore
    run.kill((1, 1))
    run.train(20, 24)
    run.kill((1, 1))
    run.train(20, 40)
    run.done(40)
    record = read_folder(run.write())
    assert lost_steps(record) == 10 + 4
    assert [attempt.ended for attempt in attempts(record)] == ["host lost", "host lost", "host lost", "done"]
    outcome = recoveries(record)
    assert [(one.failed_attempt, one.attempt) for one in outcome] == [(0, 2), (2, 3)]
    assert recovery_seconds(record) == max(one.seconds for one in outcome)


def test_a_host_with_its_own_error_is_the_cause(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.bring_up(0)
    run.event("fail", (1, 0), reason="disk full")
    run.now += 1
    run.attempt = 1
    run.bring_up(0)
    first, second = attempts(read_folder(run.write()))
    assert (first.ended, first.reason, first.cause_host) == (
        "failed",
        "slice 1 host 0: disk full",
        HostId(1, 0),
    )
    assert second.ended == "running"


@pytest.mark.parametrize("retrained", [0, 10])
def test_an_extended_run_is_not_done_by_its_old_result(retrained: int, tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 20)
    run.save(20)
    run.done(20)
    run.now += 60
    run.bring_up(20 - retrained)
    assert [attempt.ended for attempt in attempts(read_folder(run.write()))] == ["done", "running"]
    run.steps(21 - retrained, 25 - retrained)
    assert [attempt.ended for attempt in attempts(read_folder(run.write()))] == ["done", "running"]
    run.event("fail", (1, 0), reason="disk full")
    record = read_folder(run.write())
    assert [attempt.ended for attempt in attempts(record)] == ["done", "failed"]
    assert goodput(record, end=run.now + 30).seconds(Cause.DOWN) == pytest.approx(30)


def test_a_result_ends_the_last_attempt_without_final_events(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 20)
    run.write()
    (tmp_path / "result.json").write_text('{"steps": 20}')
    assert [attempt.ended for attempt in attempts(read_folder(tmp_path))] == ["done"]


def test_a_hung_host_is_the_cause_and_waiting_for_it_is_not_work(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 4)
    worked = run.now
    run.now += 300
    for who in run.everyone():
        own = who == (1, 0)
        run.event("hang", who, step=5, seconds=300.0, own=own, waited_for="its data" if own else "step 5")
    run.attempt = 1
    run.bring_up(0)
    first, _ = attempts(read_folder(run.write()))
    assert (first.ended, first.reason, first.cause_host, first.last_work) == (
        "failed",
        "slice 1 host 0: timed out waiting for its data",
        HostId(1, 0),
        worked,
    )


def test_a_host_that_did_not_reply_to_hung_hosts_is_the_cause(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 4)
    run.now += 300
    for who in run.everyone():
        if who != (1, 0):
            run.event("hang", who, step=5, seconds=300.0, own=False, waited_for="step 5")
            run.event("peer_lost", who, peer=2)
    run.attempt = 1
    run.bring_up(0)
    first, _ = attempts(read_folder(run.write()))
    assert (first.ended, first.reason, first.cause_host) == (
        "host lost",
        "slice 1 host 0 did not answer",
        HostId(1, 0),
    )


def test_a_host_that_dies_after_the_others_are_done_is_the_cause(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 4)
    for who in run.everyone()[:-1]:
        run.event("done", who, step=4)
    run.attempt = 1
    run.bring_up(4)
    run.done(4)
    first, second = attempts(read_folder(run.write()))
    assert (first.ended, first.cause_host, second.ended) == ("host lost", HostId(1, 1), "done")
    assert lost_steps(read_folder(tmp_path)) == 0


def test_a_running_run_is_accounted_until_now(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 4, step_seconds=1.0)
    account = goodput(read_folder(run.write()), end=run.now + 6)
    assert account.wall == 16_000_000
    assert account.seconds(Cause.IDLE) == pytest.approx(6.0)


@pytest.mark.parametrize("tier", ["save", "local_save"])
def test_a_background_save_costs_only_what_no_step_overlaps(tier: str) -> None:
    host = HostId(0, 0)
    record = RunRecord(
        steps=(StepRecord(time=101, attempt=0, step=1, loss=1, seconds=1),),
        events={
            host: (
                Event(time=100, name="start", host=host, attempt=0),
                Event(time=103, name=tier, host=host, attempt=0, step=1, seconds=2.5),
            )
        },
    )
    account = goodput(record)
    assert account.seconds(Cause.STEPS) == 1.0 and account.seconds(Cause.SAVE) == 2.0


def test_data_wait_is_separate_from_steps_and_lost_steps_stay_lost() -> None:
    host = HostId(0, 0)
    lines = [StepRecord(time=100.0 + n, attempt=0, step=n, loss=1, seconds=1, data_seconds=0.25) for n in (1, 2, 3)]
    waited = StepRecord(time=104.5, attempt=0, step=4, loss=1, seconds=1.5, data_seconds=9.0)
    record = RunRecord(
        steps=(*lines[:2], waited),
        lost_steps=(lines[2],),
        events={host: (Event(time=100, name="start", host=host, attempt=0),)},
    )
    account = goodput(record)
    assert account.seconds(Cause.STEPS) == 2 * 0.75
    assert account.seconds(Cause.DATA_WAIT) == 2 * 0.25 + 1.5
    assert account.seconds(Cause.LOST) == 1.0


_times = st.floats(0, 1000, allow_nan=False)
_names = st.sampled_from(
    ["start", "init", "data", "restore", "compile", "step", "save_begin", "save", "eval", "peer_lost", "fail", "done"]
)
_events = st.builds(
    Event,
    time=_times,
    name=_names,
    host=st.builds(HostId, st.integers(0, 1), st.integers(0, 1)),
    attempt=st.integers(0, 3),
    step=st.none() | st.integers(0, 50),
    seconds=st.none() | st.floats(0, 500),
)
_steps = st.builds(
    StepRecord,
    time=_times,
    attempt=st.integers(0, 3),
    step=st.integers(1, 50),
    loss=st.just(1.0),
    seconds=st.floats(0, 50),
)


@given(st.lists(_events, max_size=25), st.lists(_steps, max_size=12), st.lists(_steps, max_size=6), _times)
def test_causes_sum_to_the_wall_time_for_any_records(
    events: list[Event], steps: list[StepRecord], lost: list[StepRecord], end: float
) -> None:
    by_host: dict[HostId, tuple[Event, ...]] = {}
    for event in events:
        by_host[event.host] = (*by_host.get(event.host, ()), event)
    record = RunRecord(steps=tuple(steps), lost_steps=tuple(lost), events=by_host)
    outcome = attempts(record)
    for stop in (None, end):
        account = goodput(record, end=stop)
        assert all(part >= 0 for part in account.microseconds.values())
        if outcome:
            begin = min(one.start for one in outcome)
            until = max(one.end for one in outcome) if stop is None else max(stop, begin)
            assert account.wall == round((until - begin) * 1_000_000)
        assert 0.0 <= account.goodput <= 1.0
    assert lost_steps(record) >= 0
    for recovery in recoveries(record, kill_time=end):
        assert recovery.seconds >= 0
        message = [part.seconds for part in recovery.parts if part.seconds is not None]
        assert sum(message) == pytest.approx(recovery.seconds) and min(message) >= 0


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=4))
@settings(max_examples=40)
def test_steps_that_were_completed_twice_are_lost(lives: list[tuple[int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunWriter(Path(folder))
        restored = saved = 0
        for index, (length, saves) in enumerate(lives):
            run.bring_up(restored)
            run.steps(restored + 1, restored + length)
            saved = restored + length // 2 if saves else saved
            if index < len(lives) - 1:
                run.kill((1, 1))
                restored = saved
        record = read_folder(run.write())
        assert lost_steps(record) == len(record.lost_steps)
        assert [line.step for line in record.steps] == list(range(1, len(record.steps) + 1))
