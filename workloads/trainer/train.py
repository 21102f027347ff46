"""The training run from set-up to exit; the step loop is `_loop`."""

# mypy: disallow-untyped-calls=False

import functools
import itertools
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np

from trainer import saves
from trainer.data import batches as data
from trainer.errors import ExitCode
from trainer.evaluation import Evaluation, is_left
from trainer.hosts import timeouts
from trainer.hosts.job import Address, Job, leave
from trainer.models import registry
from trainer.observe.step_log import Flags, Pending
from trainer.resume import first_state, get_compiled
from trainer.schedule import ANY_SAVE, STEP_ENDING, Action, RunSchedule
from trainer.setup import Run, set_up
from trainer.step import programs as step
from trainer.step.programs import State
from trainer.telemetry import metrics
from xpk_shared.percentiles import percentiles

_FLUSH_SECONDS = 60.0  # for the last metrics, which the result is computed from


def train(job: Job, coordinator_future: "Future[Address]") -> ExitCode:
    """Run `job.config` to its end, or to a stop that all hosts agree on; return the exit code."""
    training = steps(job, coordinator_future)
    while True:
        try:
            next(training)
        except StopIteration as ended:
            return ExitCode(ended.value)


def steps(job: Job, coordinator_future: "Future[Address]") -> Generator[int, None, ExitCode]:
    """Train step by step, as a generator.

    Yields the number of finished and running steps before each step, for the first time once everything is compiled.
    """
    run = set_up(job, coordinator_future)
    state, start, tokens = first_state(run)
    if start >= job.config.run.steps:
        job.stop_step.try_start(start)  # a stop lets the run finish, as after its last step
        if job.leads:
            length = f"run.steps={job.config.run.steps}"
            metrics.say(f"nothing left to train: the checkpoint is at step {start}, {length}")
    train_step = get_compiled(
        run, "train", run.programs.train, run.programs.state, run.programs.blocks, run.programs.flags
    )
    run.replicas.compile(functools.partial(get_compiled, run))
    return (yield from _loop(run, train_step, state(), start, tokens))


def _loop(run: Run, train_step: Any, state: State, at: int, tokens: int) -> Generator[int, None, ExitCode]:
    """Run the training loop, starting after step `at` and `tokens` tokens.

    Metrics of step N are recorded while step N+1 computes.
    """
    last, schedule = run.job.config.run.steps, RunSchedule(run.job.config, evaluates=run.held_out > 0)
    resumes_evaluation = at > 0 and Action.EVALUATE in schedule.actions(at) and is_left(run, at)
    if at < last:
        run.progress.begin(at, evaluates=resumes_evaluation)
    batches, evaluate, tuner = _batches(run, at, last), Evaluation(run), run.tuner(schedule)
    pending: Pending | None = None
    actions = Action.NONE
    if at >= last:
        saves.save_final(run, at, state, tokens=tokens)
    if resumes_evaluation and (code := _evaluate(run, evaluate, state, at, tokens=tokens)) is not None:
        return code
    while at < last:
        yield at
        tuner.agree(at)
        if not _try_start(run, at + 1):
            return _stop(run, at, state, pending, tokens=tokens, checked=actions, evaluation=evaluate)
        at, tokens, actions = at + 1, tokens + run.step_items, schedule.actions(at + 1)
        state, dispatched = _dispatch(run, train_step, state, batches, at=at, actions=actions, running=pending)
        if pending is not None:
            _await_step(run, pending)
            run.record.keep()
            saves.warm_up(run)
        pending = dispatched
        if not actions & STEP_ENDING:
            continue
        flags, pending = _await_step(run, pending), None
        if actions & Action.COMPARE_HOSTS:
            run.stragglers.compare(at)
        if actions & Action.SAVE_LOCALLY:
            saves.save_locally(run, at, state, tokens=tokens)
        if actions & Action.SAVE:
            saves.save(run, at, state, tokens=tokens, disk_low=flags.disk_low, is_final=at == last)
        if actions & Action.EVALUATE:
            code = _evaluate(run, evaluate, state, at, tokens=tokens, checked=actions)
            if code is not None:
                return code
    final_loss = evaluate(state, step=at) if run.held_out else None
    evaluate.finish()
    return _finish(run, at, tokens=tokens, eval_loss=final_loss)


def _try_start(run: Run, at: int) -> bool:
    """Return whether step `at` may start, or else all hosts stop before it."""
    with run.job.watchdog.waiting(f"the hosts' agreement on stopping before step {at}", at):
        return run.job.stop_step.try_start(at)


def _evaluate(
    run: Run, evaluation: Evaluation, state: State, at: int, *, tokens: int, checked: Action = Action.NONE
) -> ExitCode | None:
    """Evaluate the state after step `at`; end the run if it has reached its target, and return the exit code."""
    loss = evaluation(state, step=at)
    if not run.progress.has_reached_target:
        return None
    _try_start(run, at)  # also if no step has been started: a stop lets the run finish, as after its last step
    saves.save_final(run, at, state, tokens=tokens, checked=checked)
    return _finish(run, at, tokens=tokens, eval_loss=loss)


def _stop(
    run: Run,
    at: int,
    state: State,
    pending: Pending | None,
    *,
    tokens: int,
    checked: Action,
    evaluation: Evaluation,
) -> ExitCode:
    """Finish step `at`, save the state after it, and return the exit code; `checked` are the actions of that step."""
    if pending is not None:
        _await_step(run, pending)
    saves.save_final(run, at, state, tokens=tokens, checked=checked)
    evaluation.finish()
    job = run.job
    run.profiler.close()
    run.record.stop()
    job.events.write("preempt", at)
    metrics.say(f"{job.host.name(job.host.process_id)}: stopped and saved after step {at}")
    leave(job)
    return job.stop.code if job.stop.requested else ExitCode.PREEMPTED


def _batches(run: Run, at: int, last: int) -> Iterator[data.Blocks]:
    """Return the batches of the steps after `at`, read ahead."""
    batches = itertools.islice(zip(data.train_ids(run.order, at), itertools.count(at)), max(0, last - at))
    return data.prefetch(lambda batch: run.blocks(*batch), batches, run.job.config.data.prefetch)


def _dispatch(
    run: Run,
    train_step: Any,
    state: State,
    batches: Iterator[data.Blocks],
    *,
    at: int,
    actions: Action,
    running: Pending | None,
) -> tuple[State, Pending]:
    """Dispatch step `at` and the check of the state after it; return that state, which may not be computed yet.

    `running` is the previous step, if it may still be running; while it runs, no chip waits.
    """
    run.profiler.start_or_end(at, running)
    dispatched = time.monotonic()
    with run.job.watchdog.waiting(f"its data of step {at}", at, is_own=lambda: True):
        blocks = next(batches)
    arrived = time.monotonic()
    free_at = dispatched if running is None else running.end_time.result() if running.end_time.done() else arrived
    data_seconds = arrived - max(dispatched, free_at)
    run.stragglers.record_waits(data_seconds, max(0.0, dispatched - free_at))
    with run.job.watchdog.waiting(f"step {at}", at):
        with run.profiler.step(at):
            flags = _flags(run, data_seconds, saves=Action.SAVE in actions)
            state, out = train_step(state, blocks, flags)
        if actions & Action.CHECK_REPLICAS:
            out["differ"] = run.replicas.begin(at, state)
        if actions & ANY_SAVE:
            out["broken"] = saves.check_finite(run, at, state)
    return state, run.progress.watch(at, out, dispatched)


def _await_step(run: Run, pending: Pending) -> Flags:
    """Wait for a step and its checks. Raises FatalError or CorruptError."""
    with saves.finishing_saves(run), run.job.watchdog.waiting(f"step {pending.step}", pending.step):
        flags = run.progress.finish(pending)
        run.replicas.check_result(pending.step, flags.differ)
    run.stragglers.record_step(flags.seconds)
    return flags


def _flags(run: Run, data_seconds: float, *, saves: bool) -> jax.Array:
    """Return this host's flags of a step: disk too full for a checkpoint, milliseconds of data wait."""
    free, need = run.checkpoints.free_and_needed_bytes(run.programs.state) if saves else (None, 0)
    return _placed_flags(
        run.programs.flags.sharding,
        run.slots.chips,
        disk_low=free is not None and free < need,
        data_ms=min(int(1000 * data_seconds), 2**31 - 1),
    )


@functools.lru_cache(maxsize=64)
def _placed_flags(sharding: Any, chips: int, *, disk_low: bool, data_ms: int) -> jax.Array:
    row = np.array([[disk_low, data_ms]], np.int32)
    return jax.make_array_from_callback((chips, step.FLAGS), sharding, lambda _: row)


def _finish(run: Run, at: int, *, tokens: int, eval_loss: float | None) -> ExitCode:
    """Write the result, clear the local tier and disconnect from the other hosts."""
    job = run.job
    min_seconds = timeouts.limits(job).storage()
    run.profiler.close()
    run.progress.end(at)
    if job.leads:
        with job.watchdog.waiting("the write of result.json", at, is_own=lambda: True, min_seconds=min_seconds):
            write_result(run, at, tokens=tokens, eval_loss=eval_loss)
    run.record.stop()
    job.events.write("done", at, data_bytes=run.read.bytes if run.read else 0)
    with timeouts.storage(run.job, "the removal of its local checkpoints", at, run.local):
        run.local.clear()
    with job.watchdog.waiting("all hosts to finish", at, min_seconds=min_seconds):
        job.peers.barrier("done")
    leave(job)
    if job.leads:
        metrics.say(f"done: {at} steps, results in {job.out}")
    return ExitCode.DONE


def write_result(run: Run, at: int, *, tokens: int, eval_loss: float | None) -> None:
    """Write result.json from metrics.jsonl, which also has the steps of earlier attempts."""
    metrics.flush(_FLUSH_SECONDS)
    lines = run.job.out / "metrics.jsonl"
    content = lines.read() if lines.is_file() else b""
    losses = metrics.losses(content)
    result = {
        "job": run.job.host.job_id,
        "steps": at,
        "initial_loss": losses.get(1),
        "final_loss": losses.get(at),
        "eval_loss": eval_loss,
        f"{run.example.noun}s": tokens,
        "parameters": registry.parameters(run.job.config.model),
        "step_seconds": percentiles(metrics.step_seconds(content)),
    }
    (run.job.out / "result.json").write(metrics.as_json(result, indent=1).encode())
