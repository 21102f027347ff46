"""The training run from set-up to exit: the step loop, evaluations, saves and preemption."""

# mypy: disallow-untyped-calls=False

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np

from trainer.checkpoint import manager
from trainer.data import batches as data
from trainer.errors import ExitCode, FatalError, SaveError
from trainer.hosts import timeouts
from trainer.hosts.job import Address, Job, leave
from trainer.models import registry
from trainer.observe.step_log import Flags, Pending
from trainer.resume import compiled, first_state
from trainer.setup import Run, set_up
from trainer.step import programs as step
from trainer.step.programs import State
from trainer.step_actions import Due
from trainer.telemetry import metrics
from xpk_shared.percentiles import percentiles

_FLUSH_SECONDS = 60.0  # for the last metrics, which the result is computed from


def train(job: Job, meeting: "Future[Address]") -> ExitCode:
    """Run `job.config` to its end, or to a stop that all hosts agree on; return the exit code."""
    training = steps(job, meeting)
    while True:
        try:
            next(training)
        except StopIteration as ended:
            return ExitCode(ended.value)


def steps(job: Job, meeting: "Future[Address]") -> Generator[int, None, ExitCode]:
    """Train step by step, as a generator.

    Yields the number of steps begun before each step; the first time when everything is prepared and compiled.
    """
    run = set_up(job, meeting)
    state, start, trained = first_state(run)
    if start >= job.config.run.steps and job.is_first:
        length = f"run.steps={job.config.run.steps}"
        metrics.say(f"the checkpoint is already at step {start}; nothing left to train with {length}")
    train_step = compiled(run, "train", run.programs.train, run.programs.state, run.programs.blocks, run.programs.flags)
    run.replicas.compile(functools.partial(compiled, run))
    return (yield from _loop(run, train_step, state(), start, trained))


def _due(run: Run, at: int) -> Due:
    config, last = run.job.config, run.job.config.run.steps
    saving, keeping = at % config.checkpoint.every == 0 or at == last, run.local.due(at) and at < last
    evaluating = run.held_out > 0 and config.run.eval_every > 0 and at % config.run.eval_every == 0 and at < last
    checking = run.replicas.due(at, saving=saving or keeping)
    return Due(saving, keeping, evaluating, checking, run.stragglers.due(at))


def _loop(run: Run, train_step: Any, state: State, at: int, trained: int) -> Generator[int, None, ExitCode]:
    """Run the training loop, starting after step `at` and `trained` tokens.

    Metrics of step N are recorded while step N+1 computes.
    """
    config, last = run.job.config, run.job.config.run.steps
    ids = itertools.islice(data.train_ids(run.order, at), max(0, last - at))
    batches = data.prefetch(run.blocks, ids, config.data.prefetch)
    evaluate = _evaluator(run)
    pending: Pending | None = None
    if at >= last:
        _save_final(run, at, state, trained)
    while at < last:
        run.job.watchdog.idle()
        yield at
        at, trained = at + 1, trained + run.step_items
        due, flags = _due(run, at), Flags()
        state, begun = _begin(run, train_step, state, batches, at, due, pending)
        if pending is not None:
            flags = _finished(run, pending)
            manager.warm_up()
            run.finite.compile(run.compiler)
        pending = begun
        if not (due.ended_step or flags.stop):
            continue
        now = _finished(run, pending)
        pending = None
        if due.comparing:
            run.stragglers.compare(at)
        stopping = flags.stop or now.stop
        if stopping:
            _check_state(run, at, state, due)
        if due.keeping:
            _save_local(run, at, state, trained)
        if due.saving or stopping:
            _save(run, at, state, trained, now.disk_low, final=stopping or at == last)
        if stopping and at < last:
            return _preempted(run, at)
        if due.evaluating:
            _evaluate(run, evaluate(), state, at)
    return _finish(run, at, trained, _evaluate(run, evaluate(), state, at) if run.held_out else None)


def _evaluator(run: Run) -> Callable[[], Any]:
    """Return a function that returns the compiled evaluation, compiled at its first call."""
    params, averages = run.programs.state["params"], run.programs.state.get("averages")
    return functools.cache(
        lambda: compiled(run, "evaluate", run.programs.evaluate, params, run.programs.blocks, averages)
    )


def _begin(
    run: Run,
    train_step: Any,
    state: State,
    batches: Iterator[data.Blocks],
    at: int,
    due: Due,
    before: Pending | None,
) -> tuple[State, Pending]:
    """Dispatch step `at` and the check of the state after it; return that state, which may not be computed yet.

    `before` is the previous step, if it may still be running; while it runs, no chip waits.
    """
    run.profiler.before(at, before)
    run.job.watchdog.waits(f"its data of step {at}", at, own=lambda: True)
    dispatched = time.monotonic()
    blocks = next(batches)
    came = time.monotonic()
    run.job.watchdog.waits(f"step {at}", at)
    free = dispatched if before is None else before.ended.result() if before.ended.done() else came
    data_seconds = came - max(dispatched, free)
    run.stragglers.began(data_seconds, max(0.0, dispatched - free))
    with run.profiler.step(at):
        state, out = train_step(state, blocks, _flags(run, due.saving, data_seconds))
    if due.checking:
        out["differ"] = run.replicas.begin(at, state)
    if due.storing:
        out["broken"] = _check_finite(run, at, state)
    return state, run.progress.began(at, out, dispatched)


def _finished(run: Run, pending: Pending) -> Flags:
    """Wait for a step and its checks. Raises FatalError or CorruptError."""
    with _saves_end(run):
        flags = run.progress.finish(pending)
    run.replicas.judge(pending.step, flags.differ)
    run.stragglers.took(flags.seconds)
    return flags


def _flags(run: Run, saving: bool, data_seconds: float) -> jax.Array:
    """Return this host's flags of a step: stop requested, no room for a checkpoint, milliseconds waited for data."""
    free, need = run.checkpoints.room(run.programs.state) if saving else (None, 0)
    disk_low = free is not None and free < need
    return _placed_flags(
        run.programs.flags.sharding,
        run.slots.chips,
        run.job.stop.requested,
        disk_low,
        min(int(1000 * data_seconds), 2**31 - 1),
    )


@functools.lru_cache(maxsize=64)
def _placed_flags(placed: Any, chips: int, stop: bool, disk_low: bool, data_ms: int) -> jax.Array:
    row = np.array([[stop, disk_low, data_ms]], np.int32)
    return jax.make_array_from_callback((chips, step.FLAGS), placed, lambda _: row)


def _check_state(run: Run, at: int, state: State, due: Due) -> None:
    """Check the state before an unplanned save, which the step itself did not check for."""
    run.job.watchdog.waits(f"the check of the state after step {at}", at)
    if not due.checking:
        run.replicas.require(at, state)
    if not due.storing:
        broken = _check_finite(run, at, state)
        with _saves_end(run):
            run.progress.require(at, broken)


def _check_finite(run: Run, at: int, state: State) -> jax.Array:
    """Start the check that the state after step `at` is finite; the first call may wait for its program."""
    run.finite.compile(run.compiler)
    if not run.finite.ready:
        began = time.monotonic()
        timeouts.compilation(run.job, "the program 'finite'", at, own=lambda: run.compiler.busy)
        cached = run.finite.wait()
        run.job.events.write("compile", None, time.monotonic() - began, cached=cached, program="finite")
        run.job.watchdog.waits(f"step {at}", at)
    return run.finite.begin(state)


@contextlib.contextmanager
def _saves_end(run: Run) -> Iterator[None]:
    """Wait for saves of earlier steps before raising a FatalError of the body.

    The body fails on all hosts alike, so all wait for the same saves, for at most `checkpoint.hang_seconds`.
    """
    try:
        yield
    except FatalError:
        run.job.watchdog.idle()
        deadline = time.monotonic() + run.job.config.checkpoint.hang_seconds
        for tier in (run.checkpoints, run.local):
            if not tier.ended(max(0.0, deadline - time.monotonic())):
                metrics.say("warning: the save in progress takes too long and is aborted")
        raise


def _save_local(run: Run, at: int, state: State, trained: int) -> None:
    """Save the state to the local tier in the background."""
    timeouts.storage(run.job, f"the local checkpoint of step {at}, or the one before it", at, run.local)
    run.local.save(at, state, tokens=trained)
    run.job.watchdog.idle()


def _save(run: Run, at: int, state: State, trained: int, disk_low: bool, *, final: bool) -> None:
    """Save the state in the background, or wait for it if `final`. Raises SaveError if a final save fails."""
    timeouts.storage(run.job, f"the checkpoint of step {at}, or the one before it", at, run.checkpoints)
    if disk_low:
        free, need = run.checkpoints.room(state)
        run.checkpoints.wait()
        run.checkpoints.fail(at, f"no room: {(free or 0) / 2**20:.0f} MiB free, {need / 2**20:.0f} MiB needed")
    else:
        run.checkpoints.save(at, state, tokens=trained)
    failure = run.checkpoints.wait() if final else ""
    if final:
        timeouts.storage(run.job, "the last local checkpoint", at, run.local)
        run.local.wait()
    run.job.watchdog.idle()
    if failure:
        raise SaveError(f"the state of step {at} is not saved in {run.checkpoints.place}: {failure}")


def _save_final(run: Run, at: int, state: State, trained: int) -> None:
    """Save a state that only the local tier may hold, which is cleared at the end. Raises SaveError."""
    if run.checkpoints.last != at:
        _check_state(run, at, state, Due(False, False, False, False, False))
        _save(run, at, state, trained, disk_low=False, final=True)


def _preempted(run: Run, at: int) -> ExitCode:
    job = run.job
    run.profiler.close()
    job.events.write("preempt", at)
    metrics.say(f"{job.host.name(job.host.process_id)}: stopped and saved after step {at}")
    leave(job)
    return job.stop.code if job.stop.requested else ExitCode.PREEMPTED


def _evaluate(run: Run, evaluate: Any, state: State, at: int) -> float | None:
    """Return the mean loss over the held-out records; every host runs the same number of steps."""
    began = time.monotonic()
    total = weight = right = 0.0
    counted = False
    ids = data.eval_ids(run.batch, run.records - run.held_out, run.held_out)
    batches = data.prefetch(run.blocks, ids, run.job.config.data.prefetch)
    while True:
        run.job.watchdog.waits(f"its data of the evaluation after step {at}", at, own=lambda: True)
        if (blocks := next(batches, None)) is None:
            break
        run.job.watchdog.waits(f"the evaluation after step {at}", at)
        sums = jax.device_get(evaluate(state["params"], blocks, state.get("averages")))
        total, weight = total + float(sums.loss), weight + float(sums.weight)
        if sums.right is not None:
            right, counted = right + float(sums.right), True
    run.job.watchdog.idle()
    loss, accuracy = total / max(weight, 1.0), right / max(weight, 1.0) if counted else None
    run.progress.evaluated(at, loss, accuracy, int(weight), time.monotonic() - began)
    return loss


def _finish(run: Run, at: int, trained: int, eval_loss: float | None) -> ExitCode:
    job = run.job
    least = job.config.checkpoint.hang_seconds
    run.profiler.close()
    if job.is_first:
        job.watchdog.waits("the result to be written", at, own=lambda: True, least=least)
        metrics.flush(_FLUSH_SECONDS)
        lines = job.out / "metrics.jsonl"
        written = lines.read() if lines.is_file() else b""
        losses = metrics.losses(written)
        result: dict[str, Any] = {"steps": at, "initial_loss": losses.get(1), "final_loss": losses.get(at)}
        result["eval_loss"] = eval_loss
        result |= {
            f"{run.example.noun}s": trained,
            "parameters": registry.parameters(job.config.model),
        }
        result["step_seconds"] = percentiles(metrics.step_seconds(written))
        (job.out / "result.json").write(metrics.as_json(result, indent=1).encode())
    job.events.write("done", at, data_bytes=run.read.bytes if run.read else 0)
    timeouts.storage(run.job, "the removal of its local checkpoints", at, run.local)
    run.local.clear()
    job.watchdog.waits("all hosts to be done", at, least=least)
    job.peers.barrier("done")
    leave(job)
    if job.is_first:
        metrics.say(f"done: {at} steps, results in {job.out}")
    return ExitCode.DONE
