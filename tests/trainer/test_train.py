"""Complete jobs of two slices in real processes: killed, stopped, and with a full disk."""

import json
import math
import re
import resource
import shutil
import signal
import socket
import statistics
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.trainer.small import Cluster, arguments, one_host, run_alone, start
from trainer.data.sampler import Order

pytestmark = pytest.mark.timeout(240)


@pytest.mark.slow
def test_a_killed_host_loses_only_the_steps_since_the_checkpoint(tmp_path: Path) -> None:
    settings = [
        "run.steps=60",
        "checkpoint.every=20",
        "run.eval_every=30",
        "data.max_bytes=100000",
        "run.log_every=1",
    ]
    whole = start(tmp_path / "whole", settings)
    assert whole.exit_codes() == [0, 0], whole.logs()
    expected = whole.losses()
    seconds = sorted(whole.step_seconds().values())
    # Not the shortest: a host that was delayed sees two steps end at once.
    assert seconds[len(seconds) // 4] > statistics.median(seconds) / 5, seconds
    assert sorted(expected) == list(range(1, 61))

    # It does not reach the next checkpoint before it is killed.
    first = start(tmp_path / "cut", [*settings, "data.loader_hosts=1"], faults={0: "hang:30"})
    first.wait_for_save()
    first.wait_for_step(22)
    first.processes[1].send_signal(signal.SIGKILL)
    assert first.exit_codes() == [75, -9], first.logs()
    assert "slice 0 host 0: lost slice 1 host 0" in first.logs()
    reached = max(first.losses())

    second = start(tmp_path / "cut", [*settings, "data.loader_hosts=1"], attempt=1, blind=tmp_path / "blind")
    assert second.exit_codes() == [0, 0], second.logs()
    phases = {event.get("program", event["event"]): event for event in reversed(second.events(0))}
    begun = phases["restore"]
    assert (begun["source"], begun["read"]) == ("checkpoint", True)
    ended = phases["train"]["time"]  # compiled
    assert phases["choose"]["time"] <= ended - phases["train"]["seconds"] + 0.01
    assert begun["time"] - begun["seconds"] >= ended - 0.01, "a restore does not include compile time"
    assert 0 < phases["spread"]["seconds"] < begun["seconds"]
    assert "slice 1 host 0: attempt 1 resuming from step" in second.logs()
    assert 0 <= reached - begun["step"] <= 20 + 1
    again = second.losses()
    assert sorted(again) == list(range(begun["step"] + 1, 61))
    assert first.losses() | again == expected
    ends = [tmp_path / "cut" / "events" / "s0-h0.jsonl", tmp_path / "blind" / "events" / "s1-h0.jsonl"]
    loaded, none = (json.loads(file.read_text().splitlines()[-1])["data_bytes"] for file in ends)
    assert loaded > 0 and none == 0  # slice 1 loads nothing, and could not: it does not see the data
    result = json.loads((tmp_path / "cut" / "result.json").read_text())
    assert result["steps"] == 60
    assert float(result["initial_loss"]).hex() == expected[1]
    assert float(result["final_loss"]).hex() == expected[60]


@pytest.mark.slow
def test_sigterm_to_one_host_saves_the_same_step_on_all(tmp_path: Path) -> None:
    job = start(tmp_path, ["run.steps=100000", "checkpoint.every=100000", "data.max_bytes=100000"])
    job.wait_for_step(3)
    job.processes[1].send_signal(signal.SIGTERM)
    assert job.exit_codes() == [143, 143], job.logs()
    ends = [job.events(n)[-1] for n in (0, 1)]
    assert [end["event"] for end in ends] == ["preempt", "preempt"]
    assert ends[0]["step"] == ends[1]["step"]
    assert (tmp_path / "checkpoints" / str(ends[0]["step"]) / "manifest.json").exists()


def test_sigterm_before_the_first_step_ends_all_hosts(tmp_path: Path) -> None:
    job = start(tmp_path, ["run.steps=100000"])
    while not any(event["event"] == "init" for event in job.events(0)):
        assert job.processes[0].poll() is None, job.logs()
    job.processes[0].send_signal(signal.SIGTERM)
    assert job.exit_codes(20) == [143, 143], job.logs()
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))


@pytest.mark.slow
def test_a_single_host_needs_no_environment(tmp_path: Path) -> None:
    out = f"run.output_dir={tmp_path}"
    ran = run_alone(*arguments(["run.steps=3", "data.max_bytes=50000", out]), XPK_PEAK_FLOPS="1e12")
    assert ran.returncode == 0, ran.stderr
    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps] == [1, 2, 3, 3]
    assert steps[0]["mfu"] is None and "mfu" not in ran.stdout, "the peak is not that of this chip"
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["steps"], result["tokens"]) == (3, 3 * 8 * 16)
    less = run_alone(*arguments(["run.steps=2", "data.global_batch=4", "data.max_bytes=50000", out]))
    assert less.returncode == 0, less.stderr
    assert "nothing left to train: the checkpoint is at step 3, run.steps=2" in less.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["steps"], result["tokens"]) == (3, 3 * 8 * 16)
    other = run_alone(*arguments(["model.mlp=32", "model.heads=4", "optim.name=lamb", "data.max_bytes=50000", out]))
    assert other.returncode == 42, other.stderr
    assert other.stderr == (
        f"error: checkpoint {tmp_path / 'checkpoints' / '3'} is of another model"
        " (model.heads 2 -> 4, model.mlp 64 -> 32) and of another optimizer (optim.name adamw -> lamb)."
        " Use another run.output_dir, or the model and optimizer that it was saved with\n"
    )


@pytest.mark.slow
def test_a_nonfinite_loss_ends_the_run_before_a_save(tmp_path: Path) -> None:
    settings = ["optim.lr=1e38", "optim.warmup=1", "optim.grad_clip_norm=0", "checkpoint.every=1", "run.steps=50"]
    ran = run_alone(*arguments([*settings, "data.max_bytes=50000", f"run.output_dir={tmp_path}"]))
    assert ran.returncode == 42, ran.stderr
    assert ran.stderr.count("\n") == 1, ran.stderr
    events = [json.loads(line) for line in (tmp_path / "events" / "s0-h0.jsonl").read_text().splitlines()]
    (outcome,) = [event for event in events if event["event"] == "not_finite"]
    step, named = outcome["step"], ", ".join(map(str, outcome["records"]))
    assert f"of step {step} is" in ran.stderr and f"its records are {named}." in ran.stderr
    assert outcome["records"] == Order(0, 8, _train_records(tmp_path)).ids(step - 1).tolist()
    begun = [event["step"] for event in events if event["event"] == "save_begin"]
    assert begun == list(range(1, step)), "each step before it, and no more"
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_nonfinite_loss_does_not_interrupt_a_running_save(tmp_path: Path) -> None:
    ram = tmp_path / "ram"
    settings = ["optim.lr=1e38", "optim.warmup=1", "optim.grad_clip_norm=0", "checkpoint.every=1", "run.steps=50"]
    local = ["checkpoint.local_every=1", f"checkpoint.local_path={ram}"]
    out = tmp_path / "out"
    job = start(out, [*settings, *local, "data.max_bytes=50000"], faults={0: "late:1", 1: "late:1"})
    assert job.exit_codes(200) == [42, 42], job.logs()
    (step,) = {event["step"] for host in (0, 1) for event in job.events(host) if event["event"] == "not_finite"}
    last = step - 1
    assert last >= 1
    assert last in [event["step"] for event in job.events(0) if event["event"] == "save"]
    assert (out / "checkpoints" / str(last) / "manifest.json").is_file()
    assert {path.name for path in ram.glob("*/s*-h0/[0-9]*")} == {str(last)}
    for log in sorted(out.glob("log-0-*")):  # each finds it itself, or is notified first by the other host
        assert re.search(r"error: the loss of step \d+ is|host 0 failed permanently", log.read_text()), log


@pytest.mark.slow
def test_an_update_that_overflows_is_not_saved(tmp_path: Path) -> None:
    """The step's loss and gradient are from before the update, so they are finite. The learning rate of step 1 is 0."""
    huge = ["optim.lr=3e38", "optim.weight_decay=10", "optim.warmup=1", "optim.grad_clip_norm=0", "run.steps=2"]
    ran = run_alone(*arguments([*huge, "checkpoint.every=2", "data.max_bytes=50000", f"run.output_dir={tmp_path}"]))
    assert ran.returncode == 42, ran.stdout + ran.stderr
    records = ", ".join(map(str, Order(0, 8, _train_records(tmp_path)).ids(1).tolist()))
    assert ran.stderr == (
        "error: after step 2 the state is not finite (params.embed, params.layers.down and 3 more);"
        f" its records are {records}."
        " A restart would repeat this bit for bit; use a lower optim.lr, or inspect these records\n"
    )
    job = Cluster(tmp_path, [], 0, lambda name: (tmp_path / name).read_text())
    assert not [event for event in job.events(0) if event["event"] == "save_begin"]
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))
    losses = [float.fromhex(loss) for loss in job.losses().values()]
    assert len(losses) == 2 and all(map(math.isfinite, losses))
    (outcome,) = [event for event in job.events(0) if event["event"] == "not_finite"]
    assert (outcome["step"], len(outcome["arrays"])) == (2, 5)


def _train_records(out: Path) -> int:
    """Return the number of records that a run trains on: those of its tokens except the held-out hundredth."""
    (tokens,) = (out / "data").glob("*.bin")
    records = (tokens.stat().st_size - 1) // 16
    return records - int(records * 0.01)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_port_in_use_is_reported_in_one_line(beyond: int, tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port + beyond)):
        ran = run_alone(
            *arguments(["run.steps=1"]),
            MEGASCALE_NUM_SLICES="2",
            MEGASCALE_SLICE_ID="0",
            XPK_HOSTS_PER_SLICE="1",
            TPU_WORKER_ID="0",
            XPK_COORDINATOR_ADDRESS=f"127.0.0.1:{port}",
            XPK_OUTPUT_DIR=str(tmp_path),
        )
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1, ran.stderr
    assert ran.stderr.startswith(f"error: cannot listen at 127.0.0.1:{port + beyond}: Address already in use")


@pytest.mark.slow
def test_a_full_disk_loses_checkpoints_but_not_the_run(tmp_path: Path) -> None:
    job = start(tmp_path, ["run.steps=8", "checkpoint.every=4", "data.max_bytes=20000", "run.eval_every=0"])
    for process in job.processes:  # writes beyond this fail like on a full disk
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
    codes = job.exit_codes()
    assert codes[0] == 1 and set(codes) <= {1, 75}, job.logs()
    assert sorted(job.losses()) == list(range(1, 9))
    failed = [event for event in job.events(0) if event["event"] == "save_failed"]
    assert [event["step"] for event in failed] == [4, 8]
    assert "the state of step 8 was not saved" in job.logs() and "File too large" in job.logs()
    assert not [path for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()]


@pytest.mark.slow
def test_a_restart_reuses_compiled_programs(tmp_path: Path) -> None:
    for attempt, cached in enumerate((False, True)):
        settings = [f"run.steps={2 + attempt}", "data.max_bytes=50000", f"run.output_dir={tmp_path}", "optim.warmup=1"]
        ran = run_alone(*arguments(settings), **one_host(tmp_path, attempt))
        assert ran.returncode == 0, ran.stderr
        lines = (tmp_path / "events" / "s0-h0.jsonl").read_text().splitlines()
        outcome = [
            event for event in map(json.loads, lines) if event["event"] == "compile" and event["attempt"] == attempt
        ]
        # The learning rate's schedule is part of the step and depends on the number of steps; evaluation does not.
        assert {event["cached"] for event in outcome if event["program"] == "evaluate"} == {cached}


@pytest.mark.slow
def test_a_restart_loads_programs_or_compiles_them(tmp_path: Path) -> None:
    settings = ["run.steps=3", "data.max_bytes=50000", f"run.output_dir={tmp_path}", "run.eval_every=0"]
    programs = tmp_path / "compile-cache" / "programs"
    losses = []
    for attempt, loaded in enumerate((False, True, False)):
        if attempt == 2:
            for file in programs.iterdir():
                file.write_bytes(file.read_bytes()[:-1])
        shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
        ran = run_alone(*arguments(settings), **one_host(tmp_path, attempt))
        assert ran.returncode == 0, ran.stderr
        job = Cluster(tmp_path, [], attempt, lambda name: (tmp_path / name).read_text())
        losses.append(job.losses())
        outcome = {e["program"]: e.get("loaded", False) for e in job.events(0) if e["event"] == "compile"}
        assert (outcome["train"], outcome["evaluate"]) == (loaded, loaded)
        message = "the cached program 'train' cannot be loaded (damaged, or from another workload); compiling it"
        assert (message in ran.stdout) == (attempt == 2)
    assert losses[0] == losses[1] == losses[2] and len(losses[0]) == 3
