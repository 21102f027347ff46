"""Recovery drills: after any kill, the losses equal those of the undisturbed run, bit for bit."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from e2e.harness import ONE_CHIP, Lab, Workload, largest_file

STEPS, INTERVAL = 40, 10
HOSTS = 4
TRAINER = [
    "--config", "tiny", "--set", f"run.steps={STEPS}", "--set", f"checkpoint.every={INTERVAL}",
    "--set", "run.eval_every=0", "--set", "run.log_every=4", "--set", "data.max_bytes=400000",
    "--set", "data.global_batch=16", "--set", "model.seq_len=64", "--set", "model.layers=1",
]  # fmt: skip
SECONDS = 240.0


def say(text: str) -> None:
    """Print a line; pytest shows it when a drill fails."""
    print(text, file=sys.stderr, flush=True)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Return a cluster of two slices with two hosts each."""
    made = Lab(folder=tmp_path_factory.mktemp("lab"), cluster="drill", say=say)
    made.prepare()
    made.create_cluster("v5litepod-8", 2)
    yield made
    made.delete_cluster()


def start(lab: Lab, name: str, *, max_restarts: int = 2, options: tuple[str, ...] = ()) -> Workload:
    """Start the run that all drills share under a name, without remains of an earlier one."""
    if (lab.manifests / f"{name}.yaml").exists():
        gone = ("--yes", "--with-output", "--grace-period", "1", "--ignore-not-found")
        lab.xpk("workload", "delete", name, "--cluster", lab.cluster, *gone)
    options = (*ONE_CHIP, *options)
    return lab.create_workload(name, num_slices=2, max_restarts=max_restarts, trainer=TRAINER, options=options)


def finish(run: Workload) -> dict[int, str]:
    """Wait for the end and return every step's final loss in hexadecimal."""
    run.wait(SECONDS)
    return run.losses


@pytest.fixture(scope="module")
def undisturbed(lab: Lab) -> dict[int, str]:
    """Return the losses of an undisturbed run."""
    run = start(lab, "calm")
    losses = finish(run)
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert run.describe()["restarts"] == 0
    return losses


def most_lost_steps(run: Workload) -> int:
    """Return the steps that a first failure may cost: an interval, and those beside a save that it interrupted."""
    restarted_at = min(event["time"] for event in run.events("start") if event["attempt"] > 0)
    return INTERVAL + run.steps_beside_a_save(restarted_at)


def until_step(run: Workload, step: int) -> None:
    """Wait until a step is finished and the previous checkpoint is committed."""
    run.await_(lambda: any(line["step"] >= step for line in run.steps) and run.saved() >= INTERVAL, SECONDS)


@contextlib.contextmanager
def frozen(run: Workload) -> Iterator[None]:
    """Stop the trainers of a run until the end of the block: it would end while commands take seconds."""
    trainers = [run.pid(slice_id, host) for slice_id in range(2) for host in range(2)]
    try:
        for pid in trainers:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in trainers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


# Under Ray a host other than the head is killed in the drill on kind.
@pytest.mark.parametrize(
    ("slice_id", "host", "launcher"),
    [
        (1, 1, "plain"),
        pytest.param(0, 0, "plain", marks=pytest.mark.extended),  # the soak kills coordinators, too
        pytest.param(0, 0, "ray", marks=pytest.mark.extended),
    ],
    ids=["a-host-plain", "the-coordinator-plain", "the-head-ray"],
)
def test_sigkill(lab: Lab, undisturbed: dict[int, str], slice_id: int, host: int, launcher: str) -> None:
    run = start(lab, f"kill-{launcher}-s{slice_id}h{host}", options=("--launcher", launcher))
    run.await_(lambda: len(pids(run) - {None}) == HOSTS, SECONDS)
    hosts = run.describe()["hosts"]  # while it starts: it trains faster than this takes
    before = {known["pod"] for known in hosts}
    (victim,) = (known for known in hosts if (known["slice"], known["host"]) == (slice_id, host))
    until_step(run, INTERVAL + 3)
    if launcher == "ray":
        lab.kill(victim, signal.SIGKILL)
    else:
        lab.kill_program(victim, run.pid(slice_id, host), signal.SIGKILL)
    assert finish(run) == undisturbed
    described = run.describe()
    assert described["restarts"] == described["restarts_counted"] == 1
    assert launcher == "ray" or {known["pod"] for known in described["hosts"]} == before, (
        "its trainers were restarted on the same hosts"
    )
    assert run.lost_steps <= most_lost_steps(run)
    assert {event["read"] for event in run.events("restore") if event["slice"] == 1} == {False}


@pytest.mark.parametrize("launcher", ["plain", pytest.param("ray", marks=pytest.mark.extended)])
def test_sigterm_saves_and_is_not_counted(lab: Lab, undisturbed: dict[int, str], launcher: str) -> None:
    run = start(lab, f"term-{launcher}", max_restarts=0, options=("--launcher", launcher))
    run.await_(lambda: len(pids(run) - {None}) == HOSTS, SECONDS)
    victim = run.host(1, 0)
    until_step(run, INTERVAL + 3)
    lab.kill(victim, signal.SIGTERM)
    assert finish(run) == undisturbed
    described = run.describe()
    assert (described["restarts"], described["restarts_counted"]) == (1, 0)
    assert run.lost_steps == 0
    assert len({event["step"] for event in run.events("preempt")}) == 1


@pytest.mark.extended  # on kind, that of another host is killed under Ray
def test_a_killed_trainer_on_the_head_is_replaced_without_a_restart(lab: Lab, undisturbed: dict[int, str]) -> None:
    # Another host's is killed in the drill on kind.
    run = start(lab, "replaced", options=("--launcher", "ray"))
    run.await_(lambda: len(pids(run) - {None}) == HOSTS, SECONDS)
    before, victim = pids(run), run.host(0, 0)
    until_step(run, INTERVAL + 3)
    lab.kill_program(victim, run.pid(0, 0), signal.SIGKILL)
    run.await_(lambda: bool(run.steps[-1]["attempt"] >= 1), SECONDS)
    assert pids(run) == before
    assert finish(run) == undisturbed
    described = run.describe()
    assert (described["restarts"], described["progress"]["replacements"]) == (0, 1)
    assert run.lost_steps <= most_lost_steps(run)


@pytest.mark.extended  # the simulation of checkpoints ends hosts at any write
def test_an_interrupted_save_is_discarded(lab: Lab, undisturbed: dict[int, str]) -> None:
    run = start(lab, "half-saved")
    run.await_(lambda: len(pids(run) - {None}) == HOSTS, SECONDS)
    victim = run.host(0, 0)
    deadline = time.monotonic() + SECONDS
    while not any(event["step"] == 2 * INTERVAL for event in run.events("save_begin")):
        assert time.monotonic() < deadline
    lab.kill(victim, signal.SIGKILL)
    assert finish(run) == undisturbed
    assert run.lost_steps <= most_lost_steps(run)


@pytest.mark.extended  # in a bucket: test_gcs_trainer.py
def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(lab: Lab, undisturbed: dict[int, str]) -> None:
    run = start(lab, "damaged", max_restarts=0)
    run.await_(lambda: run.saved() >= 2 * INTERVAL, SECONDS)
    with frozen(run):
        lab.xpk("workload", "suspend", run.name, "--cluster", lab.cluster)
    run.await_(lambda: not run.describe()["hosts"], SECONDS)
    newest = run.newest_checkpoint()
    largest = largest_file(newest)
    os.truncate(largest, largest.stat().st_size // 2)
    lab.xpk("workload", "resume", run.name, "--cluster", lab.cluster)
    assert finish(run) == undisturbed
    skipped = run.events("restore_skipped")
    assert {event["step"] for event in skipped} == {int(newest.name)} and all(event["reason"] for event in skipped)


def test_the_whole_machine_dies(lab: Lab, undisturbed: dict[int, str]) -> None:
    run = start(lab, "blackout")
    until_step(run, INTERVAL + 3)
    victims = lab.processes()
    assert len(victims) >= 9  # four hosts, four supervisors, the daemon
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none restarts what ends before it
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):  # a host ends with its supervisor
                os.kill(pid, number)
    assert finish(run) == undisturbed
    assert run.describe()["restarts"] == 1
    assert run.lost_steps <= most_lost_steps(run)


def pids(run: Workload) -> set[int | None]:
    """Return the processes of a run's hosts."""
    return {host["pid"] for host in run.describe()["hosts"]}


@pytest.mark.extended  # tests/local/test_crash.py kills it again and again
def test_a_killed_control_plane_does_not_affect_the_run(lab: Lab, undisturbed: dict[int, str]) -> None:
    run = start(lab, "headless", max_restarts=0)
    # Checked while it starts, not while it trains: on a busy machine it might end before it is disturbed.
    run.await_(lambda: len(pids(run) - {None}) == HOSTS, SECONDS)
    before = pids(run)
    until_step(run, INTERVAL + 1)
    with frozen(run):
        (daemon,) = {int((lab.folder / "state" / "clusters" / lab.cluster / "daemon.lock").read_text())}
        os.kill(daemon, signal.SIGKILL)
        assert pids(run) == before
    assert finish(run) == undisturbed
    assert run.describe()["restarts"] == 0 and run.lost_steps == 0


@pytest.mark.extended  # on kind: test_kind_queue.py
def test_a_workload_preempted_by_a_higher_priority_resumes(lab: Lab, undisturbed: dict[int, str]) -> None:
    run = start(lab, "small-fry", max_restarts=0, options=("--priority", "low"))
    until_step(run, INTERVAL + 3)
    with frozen(run):
        lab.xpk(
            "workload", "create", "urgent", "--cluster", lab.cluster, "--num-slices", "2", "--priority", "high",
            "--command", "sleep 2",
        )  # fmt: skip
    lab.xpk("workload", "wait", "urgent", "--cluster", lab.cluster, "--timeout", str(SECONDS))
    assert finish(run) == undisturbed
    assert run.describe()["restarts"] == 0
    assert run.events("preempt")
    assert run.lost_steps == 0
