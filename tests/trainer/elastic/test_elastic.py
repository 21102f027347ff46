"""Runs whose slices are lost and join again: no finished step is lost, and the losses are the undisturbed ones."""

import functools
import json
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.elastic.runs import ElasticRun
from tests.waiting import until
from trainer.elastic.slices import own_address
from trainer.errors import ExitCode
from trainer.hosts.bootstrap import Host

pytestmark = pytest.mark.timeout(300)
STEPS = 200  # so many that no run ends before a test has disturbed it
OTHERS = ("checkpoint.every=10", "run.eval_every=100", "data.path=stdlib", "data.max_bytes=100000")
SETTINGS = (f"run.steps={STEPS}", *OTHERS)
# The test ends the run, once the slices that were lost have joined again: they need seconds, whatever a step needs.
ENDLESS = ("run.steps=100000", *OTHERS)
ALL = [0, 1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[functools.partial[ElasticRun]]:
    """Start runs, whose processes are killed in the end."""
    runs: list[ElasticRun] = []

    def started(name: str, settings: Sequence[str] = SETTINGS, **sizes: Any) -> ElasticRun:
        runs.append(ElasticRun(tmp_path / name, settings, **sizes))
        return runs[-1]

    yield functools.partial(started)
    for run in runs:
        run.close()


def undisturbed(
    start: functools.partial[ElasticRun], settings: Sequence[str] = SETTINGS, **sizes: int
) -> dict[int, str]:
    """Return the losses of a run without failures."""
    run = start("undisturbed", settings, **sizes)
    assert set(run.exit_codes().values()) == {0}, run.logs()
    losses = run.losses()
    assert sorted(losses) == list(range(1, STEPS + 1))
    run.close()
    return losses


def joins_without_a_trace(
    start: functools.partial[ElasticRun], run: ElasticRun, settings: Sequence[str] = ENDLESS, **sizes: int
) -> None:
    """Wait until all slices of an endless run train, stop it, and compare it with an undisturbed one."""
    everyone = sorted({number for number, _ in run.processes})
    run.wait_for_slices(everyone)
    run.wait_for_step(max(run.losses()) + 3)
    for number in everyone:
        run.kill(number, signal_number=signal.SIGTERM)
    assert set(run.exit_codes().values()) == {143}, run.logs()
    assert run.recorded_steps() == list(range(1, max(run.losses()) + 1)), "each step is recorded once"
    calm = start("undisturbed", settings, **sizes)
    for step in [*range(100, max(run.losses()), 100), max(run.losses())]:  # how many they are depends on the machine
        calm.wait_for_step(step)
    calm.close()
    expected = calm.losses()
    assert run.losses() == {step: expected[step] for step in run.losses()}


@pytest.mark.slow
def test_slices_are_lost_and_join_again_without_a_trace_in_the_losses(start: functools.partial[ElasticRun]) -> None:
    settings = [*SETTINGS, "data.global_batch=6"]
    expected = undisturbed(start, settings, slices=3, min_slices=2, chips=1)
    run = start("disturbed", settings, slices=3, min_slices=2, chips=1)
    run.wait_for_step(5)
    run.kill(1)
    run.wait_for_slices([0, 2])
    run.wait_for_step(max(run.losses()) + 3)
    run.kill(0)  # which leads; the remaining slice waits for one of the others
    run.wait_for_slices([2])
    run.restart(0)
    run.restart(1)
    assert set(run.exit_codes().values()) == {0}, run.logs()
    steps = run.recorded_steps()
    assert steps == list(range(1, STEPS + 1)), "each step is recorded once"
    assert run.losses() == expected
    record = run.run_record()
    assert record["stopped"] and record["tally"]["failures"] == 0, "the run has never lost all slices"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_map_of_slices_that_are_lost_is_the_undisturbed_one(start: functools.partial[ElasticRun]) -> None:
    settings = (
        *("model.family=ssd", "model.image=64", "model.classes=3", "model.width=4", "model.blocks=1,1"),
        *("model.max_boxes=5", "model.detections=20", "model.compute_dtype=float32", "optim.lr=0.01"),
        *("data.path=synthetic", f"data.max_bytes={48 * 3 * 64 * 64}", "data.eval_fraction=0.2"),
        *("run.steps=60", "run.eval_every=20", "run.log_every=1"),
    )

    def precisions(run: ElasticRun) -> dict[int, float]:
        return {line["step"]: line["eval_map"] for line in run.metrics() if "eval_map" in line}

    whole = start("undisturbed", settings, chips=1)
    assert set(whole.exit_codes(300).values()) == {0}, whole.logs()
    run = start("disturbed", settings, chips=1)
    written = run.out / "evaluations" / "20"
    until(lambda: len([*written.glob("*.npz")]) == 2 or 20 in precisions(run), seconds=300, report=run.logs)
    run.kill(0)  # which leads, and has seldom measured them yet
    run.wait_for_slices([1], 300)
    assert run.processes[1, 0].wait(300) == 0, run.logs()
    assert sorted(precisions(whole)) == [20, 40, 60] and precisions(run) == precisions(whole)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_slices_follow_the_intervals_that_the_leading_one_chooses(start: functools.partial[ElasticRun]) -> None:
    run = start("disturbed", [*ENDLESS, "checkpoint.every=auto", "checkpoint.auto_max_seconds=1"], chips=1)
    run.wait_for_step(25)
    run.kill(0)  # which leads; the other one goes on with its plan
    run.wait_for_slices([1])
    run.restart(0)
    joins_without_a_trace(start, run, chips=1)
    assert events(run, "intervals")


@pytest.mark.slow
def test_a_run_that_has_lost_all_slices_saves_more_often(start: functools.partial[ElasticRun]) -> None:
    run = start("disturbed", [*SETTINGS, "checkpoint.every=auto"], chips=1)
    run.wait_for_step(25)
    assert not events(run, "save"), "the first one is due after an hour"
    for number in ALL:
        run.kill(number)
    for number in ALL:
        run.restart(number)
    assert set(run.exit_codes().values()) == {0}, run.logs()
    assert events(run, "intervals")[-1]["failures"] == 1
    assert [event["step"] for event in events(run, "save") if event["step"] < STEPS]


def events(run: ElasticRun, name: str) -> list[dict[str, Any]]:
    """Return the events of a name that the first hosts of all slices have recorded."""
    files = sorted((run.out / "events").glob("s*-h0.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines() if line.endswith("}")]
    return [row for row in rows if row["event"] == name]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [(0, 0), pytest.param((1, 1), marks=pytest.mark.extended)])
def test_any_host_of_a_slice_may_be_lost(start: functools.partial[ElasticRun], victim: tuple[int, int]) -> None:
    run = start("disturbed", ENDLESS, hosts=2, chips=1)
    run.wait_for_step(7)
    run.kill(*victim)
    run.wait_for_slices([1 - victim[0]])
    run.restart(victim[0])
    joins_without_a_trace(start, run, hosts=2, chips=1)


@pytest.mark.slow
@pytest.mark.extended  # the soak of elastic slices kills the supervisor that serves the registry, too
def test_the_run_continues_without_the_registry_and_its_slice(start: functools.partial[ElasticRun]) -> None:
    run = start("disturbed", ENDLESS, slices=4, min_slices=3)
    run.wait_for_step(5)
    run.registry.kill()
    run.kill(0)
    run.wait_for_slices([1, 2, 3], 30)
    run.wait_for_step(max(run.losses()) + 3)
    run.replace_registry()
    run.restart(0)
    joins_without_a_trace(start, run, slices=4, min_slices=3)


@pytest.mark.slow
def test_the_run_continues_while_the_registry_and_its_slice_are_frozen(start: functools.partial[ElasticRun]) -> None:
    run = start("disturbed", ENDLESS, slices=4, min_slices=3, chips=1)
    run.wait_for_step(5)
    run.registry.send_signal(signal.SIGSTOP)
    run.kill(0, signal_number=signal.SIGSTOP)
    run.wait_for_slices([1, 2, 3], 30)
    run.wait_for_step(max(run.losses()) + 3)
    run.registry.send_signal(signal.SIGCONT)
    run.kill(0, signal_number=signal.SIGCONT)
    assert run.processes[0, 0].wait(30) == 75, "the others have continued without it"
    run.restart(0)
    joins_without_a_trace(start, run, slices=4, min_slices=3, chips=1)


@pytest.mark.slow
def test_the_run_continues_without_a_slice_that_is_lost_while_the_registry_is_frozen(
    start: functools.partial[ElasticRun],
) -> None:
    settings = [*ENDLESS, "data.global_batch=6"]
    run = start("disturbed", settings, slices=3, min_slices=2, chips=1)
    run.wait_for_step(5)
    run.registry.send_signal(signal.SIGSTOP)
    run.kill(2)
    run.wait_for_slices([0, 1], 30)
    run.wait_for_step(max(run.losses()) + 3)
    run.registry.send_signal(signal.SIGCONT)
    run.restart(2)
    joins_without_a_trace(start, run, settings, slices=3, min_slices=2, chips=1)


@pytest.mark.slow
def test_too_few_slices_wait_for_the_registry_however_long(start: functools.partial[ElasticRun]) -> None:
    """They do not know whether others continue, and the only copy of the state may be theirs."""
    settings = [*ENDLESS, "observe.hang_seconds=12"]
    run = start("disturbed", settings, hosts=2, chips=1)
    run.wait_for_step(5)
    run.registry.kill()
    run.kill(0)
    time.sleep(60)  # longer than the limit of a wait for other slices
    run.replace_registry()
    run.wait_for_slices([1], 30)
    run.restart(0)
    joins_without_a_trace(start, run, settings, hosts=2, chips=1)
    assert len(run.metrics()) == len({(line["step"], "loss" in line) for line in run.metrics()}), "no step is repeated"


@pytest.mark.slow
def test_the_run_waits_with_fewer_than_the_minimum_of_slices(start: functools.partial[ElasticRun]) -> None:
    run = start("disturbed", ENDLESS, min_slices=2)
    run.wait_for_step(5)
    run.kill(1)
    run.wait_for_slices([0])
    run.restart(1)
    run.wait_for_slices(ALL)
    (lost_at, _), (joined_at, _) = run.changes()[-2:]
    assert joined_at - lost_at <= 1, "the run waited for a second slice, after the step it had begun"
    joins_without_a_trace(start, run, min_slices=2)


@pytest.mark.slow
@pytest.mark.extended  # the soak of elastic slices sends SIGTERM, too
@pytest.mark.parametrize("host", [0, 1])
def test_a_slice_with_a_host_that_is_asked_to_end_leaves_at_a_step(
    start: functools.partial[ElasticRun], host: int
) -> None:
    run = start("disturbed", ENDLESS, hosts=2, chips=1)
    run.wait_for_step(5)
    run.kill(0, host, signal.SIGTERM)
    run.wait_for_slices([1])
    assert {run.processes[0, number].wait(20) for number in (0, 1)} == {143}, run.logs()
    run.restart(0)
    joins_without_a_trace(start, run, hosts=2, chips=1)


@pytest.mark.slow
def test_a_slice_that_is_asked_to_end_leaves_alone_while_another_one_restarts(
    start: functools.partial[ElasticRun],
) -> None:
    settings = [
        *ENDLESS,
        "data.global_batch=6",
        "observe.checksum_every=1",
    ]  # which the one that leaves does not wait for
    run = start("disturbed", settings, slices=3, min_slices=2, chips=1)
    run.wait_for_step(5)
    run.kill(2)
    run.wait_for_slices([0, 1])
    run.kill(1, signal_number=signal.SIGTERM)
    run.wait_for_slices([0])
    run.restart(2)
    run.restart(1)
    joins_without_a_trace(start, run, settings, slices=3, min_slices=2, chips=1)
    assert (run.out / "log-0-0-0").exists() and not (run.out / "log-0-0-1").exists()


@pytest.mark.slow
def test_a_slice_that_returns_after_the_end_of_the_run_finishes(start: functools.partial[ElasticRun]) -> None:
    run = start("disturbed")
    run.wait_for_step(5)
    run.kill(1)
    assert run.processes[0, 0].wait(60) == 0
    run.registry.kill()
    run.restart(1)
    assert run.processes[1, 0].wait(30) == 0, run.logs()


@pytest.mark.slow
def test_a_run_that_is_asked_to_end_is_saved_and_resumes(start: functools.partial[ElasticRun]) -> None:
    expected = undisturbed(start)
    run = start("disturbed")
    run.wait_for_step(13)
    for number in ALL:
        run.kill(number, signal_number=signal.SIGTERM)
    assert set(run.exit_codes().values()) == {143}, run.logs()
    saved = max(run.losses())
    assert (run.out / "checkpoints").exists()
    for number in ALL:
        run.start(number)
    assert set(run.exit_codes().values()) == {0}, run.logs()
    steps = run.recorded_steps()
    assert steps == list(range(1, STEPS + 1)), f"resumes after step {saved}"
    assert run.losses() == expected


@pytest.mark.slow
def test_another_slice_saves_a_run_that_ends_if_the_leading_one_is_lost_before(
    start: functools.partial[ElasticRun],
) -> None:
    # Slice 0 leads; it is still writing when it is killed.
    run = start("disturbed", [*ENDLESS, "checkpoint.every=100000"], min_slices=2, faults={0: "stuck:1"})
    run.wait_for_step(13)
    run.kill(1, signal_number=signal.SIGTERM)  # too few slices are left, so all stop
    until(lambda: events(run, "save_begin"), seconds=60)
    run.kill(0)
    assert run.exit_codes() == {(0, 0): -signal.SIGKILL, (1, 0): 143}, run.logs()
    saved = max(run.losses())
    for number in ALL:
        run.start(number)
    run.wait_for_step(saved + 3)
    steps = run.recorded_steps()
    assert steps == list(range(1, len(steps) + 1)), f"resumes after step {saved}"


@pytest.mark.slow
def test_the_run_resumes_from_a_checkpoint_after_the_loss_of_all_slices(start: functools.partial[ElasticRun]) -> None:
    expected = undisturbed(start)
    run = start("disturbed")
    run.wait_for_step(25)
    for number in ALL:
        run.kill(number)
    for number in ALL:
        run.restart(number)
    assert set(run.exit_codes().values()) == {0}, run.logs()
    steps = run.recorded_steps()
    first_again = next(step for step, before in zip(steps[1:], steps, strict=False) if step <= before)
    assert first_again > 10, "at most one interval and the save in progress are repeated"
    assert run.losses() == expected
    record = run.run_record()
    tally = record["tally"]
    assert record["stopped"] and (tally["failures"], tally["persistent_restores"]) == (1, 1)
    assert len(record["seconds"]["recovery"]) == 2


@pytest.mark.slow
def test_an_evaluation_in_which_all_slices_are_lost_is_measured_again(start: functools.partial[ElasticRun]) -> None:
    settings = ("run.steps=60", *OTHERS, "run.eval_every=30")

    def evaluations(run: ElasticRun) -> list[tuple[int, float]]:
        return [(line["step"], line["eval_loss"]) for line in run.metrics() if "eval_loss" in line]

    whole = start("undisturbed", settings)
    assert set(whole.exit_codes().values()) == {0}, whole.logs()
    run = start("disturbed", settings, faults={1: "eval:1"})
    until(lambda: (run.out / "checkpoints" / "30").is_dir(), seconds=120, report=run.logs)
    for number in ALL:
        run.kill(number)
    assert not evaluations(run), "slice 1 hangs in the evaluation after step 30"
    for number in ALL:
        run.restart(number)
    assert set(run.exit_codes().values()) == {0}, run.logs()
    assert evaluations(run) == evaluations(whole)
    assert run.recorded_steps() == list(range(1, 61))


@pytest.mark.slow
def test_a_frozen_slice_is_dropped_and_joins_again_when_it_wakes(start: functools.partial[ElasticRun]) -> None:
    run = start("disturbed", ENDLESS)
    run.wait_for_step(5)
    run.kill(1, signal_number=signal.SIGSTOP)
    run.wait_for_slices([0], 30)
    run.wait_for_step(max(run.losses()) + 3)
    run.kill(1, signal_number=signal.SIGCONT)
    assert run.processes[1, 0].wait(30) == 75
    assert "the other slices continue without this one" in run.logs()
    run.restart(1)
    run.wait_for_slices(ALL)
    run.wait_for_step(max(run.losses()) + 3)
    steps = run.recorded_steps()
    assert steps == list(range(1, len(steps) + 1)), "each step is recorded once"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "hosts"), [(0, 2), pytest.param(1, 1, marks=pytest.mark.extended)])
def test_a_slice_that_hangs_ends_alone(start: functools.partial[ElasticRun], number: int, hosts: int) -> None:
    """The others wait for it longer than it waits for its data itself, and continue without it; slice 0 leads."""
    settings = [*ENDLESS, "observe.hang_seconds=12"]
    run = start("disturbed", settings, hosts=hosts, chips=1, faults={number: "hang:30"})
    run.wait_for_step(20)  # of both; one batch or two are read ahead
    run.wait_for_slices([1 - number])
    (hang,) = [event for event in events(run, "hang") if event["own"]]
    assert hang["waited_for"].startswith("its data of step")
    assert run.processes[number, 0].wait(60) == ExitCode.HUNG
    run.restart(number)
    joins_without_a_trace(start, run, settings, hosts=hosts, chips=1)


@pytest.mark.slow
def test_a_slice_whose_state_differs_from_the_others_ends_and_joins_again(
    start: functools.partial[ElasticRun],
) -> None:
    settings = [*ENDLESS, "data.global_batch=6", "observe.checksum_every=1"]
    run = start("disturbed", settings, slices=3, min_slices=2, faults={0: "flip:20"})  # which leads
    assert run.processes[0, 0].wait(120) == ExitCode.CORRUPT
    (event,) = events(run, "replicas_differ")
    assert event["arrays"] == [{"array": "params.embed", "slices": [0], "sure": True}]
    until(lambda: 20 in [save["step"] for save in events(run, "save")], report=run.logs)  # of the others
    run.wait_for_slices([1, 2])
    run.restart(0)
    joins_without_a_trace(start, run, settings, slices=3, min_slices=2)


@pytest.mark.slow
@pytest.mark.extended
def test_both_of_two_slices_whose_states_differ_end_before_one_is_saved(start: functools.partial[ElasticRun]) -> None:
    expected = undisturbed(start)
    settings = [*SETTINGS, "observe.checksum_every=1000"]
    run = start("disturbed", settings, faults={1: "flip:16"})
    assert set(run.exit_codes().values()) == {ExitCode.CORRUPT}, run.logs()
    for number in ALL:
        run.restart(number)
    assert set(run.exit_codes().values()) == {0}, run.logs()
    assert run.losses() == expected
    assert [event["step"] for event in events(run, "replicas_differ")] == [20, 20], "before the save of step 20"


@pytest.mark.slow
def test_a_slice_that_joins_trains_on_the_data_of_the_run(start: functools.partial[ElasticRun], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "1.txt").write_text("The first text of the source. " * 2000)
    settings = ("run.steps=100000", "checkpoint.every=100000", "run.eval_every=0", f"data.path={source}")
    run = start("disturbed", settings, chips=1)
    run.wait_for_step(5)
    run.kill(1)
    other = source / "2.txt"
    other.write_text("Another text, which came later. " * 2000)
    run.wait_for_slices([0])
    run.restart(1)
    run.wait_for_slices(ALL)
    other.unlink()  # for the undisturbed run
    joins_without_a_trace(start, run, settings, chips=1)


@pytest.mark.slow
def test_a_slice_with_other_settings_does_not_join(start: functools.partial[ElasticRun]) -> None:
    run = start("disturbed", ENDLESS)
    run.wait_for_step(5)
    run.kill(1)
    run.wait_for_slices([0])
    run.restart(1, ("optim.lr=0.5",))
    assert run.processes.pop((1, 0)).wait(60) == 42
    assert "slice 1 has other settings, data, code or library versions than the running slices" in run.logs()
    run.wait_for_step(max(run.losses()) + 3)


@pytest.mark.parametrize(
    ("host", "coordinator", "address"), [(0, "192.0.2.1", "192.0.2.1"), (1, "127.0.0.1", "127.0.0.1")]
)
def test_a_host_uses_the_address_at_which_its_slice_has_met(host: int, coordinator: str, address: str) -> None:
    """The name of a slice's first host may resolve to its former pod for a while, also after it did not."""
    place = Host(2, 1, 2, host, coordinator="former.invalid:8476", min_slices=1)
    assert own_address(place, coordinator) == address
