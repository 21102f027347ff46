"""Saves of the state to the persistent and the local tier, and the checks before them."""

# mypy: disallow-untyped-calls=False

import contextlib
import time
from collections.abc import Iterator

import jax

from trainer.checkpoint import manager
from trainer.errors import FatalError, SaveError
from trainer.hosts import timeouts
from trainer.hosts.measurements import LOCAL_SAVE, SAVE
from trainer.schedule import ANY_SAVE, Action
from trainer.setup import Run
from trainer.step.programs import State
from trainer.telemetry import metrics


def warm_up(run: Run) -> None:
    """Start to import and compile what the first save needs, in parallel with the steps."""
    manager.warm_up()
    run.finite.compile(run.compiler)


def save_locally(run: Run, step: int, state: State, *, tokens: int) -> None:
    """Save the state to the local tier in the background."""
    subject = f"the local checkpoint of step {step}, or the one before it"
    with timeouts.storage(run.job, subject, step, run.local, LOCAL_SAVE):
        run.local.save(step, state, tokens=tokens)


def save(run: Run, step: int, state: State, *, tokens: int, disk_low: bool, is_final: bool) -> None:
    """Save the state in the background, or wait for it if `is_final`. Raises SaveError if a final save fails."""
    failure, checkpoints = "", run.checkpoints
    with timeouts.storage(run.job, f"the checkpoint of step {step}, or the one before it", step, checkpoints, SAVE):
        if disk_low:
            free, need = checkpoints.free_and_needed_bytes(state)
            checkpoints.wait()
            checkpoints.record_failure(
                step, f"not enough space: {(free or 0) / 2**20:.0f} MiB free, {need / 2**20:.0f} MiB needed"
            )
        else:
            checkpoints.save(step, state, tokens=tokens)
        if is_final:
            failure = checkpoints.wait()
    if is_final:
        _wait_for_local(run, step)
    if failure:
        raise SaveError(f"the state of step {step} was not saved in {checkpoints.place}: {failure}")


def save_final(run: Run, step: int, state: State, *, tokens: int, checked: Action = Action.NONE) -> None:
    """Save the state after `step` unless that has been done, and wait for it. Raises SaveError.

    The local tier is not sufficient: it is cleared at the end. `checked` are the actions whose checks were made.
    """
    with timeouts.storage(
        run.job, f"the save in progress before the last checkpoint, of step {step}", step, run.checkpoints, SAVE
    ):
        run.checkpoints.wait()
    if run.checkpoints.last != step:
        check_state(run, step, state, checked=checked)
        save(run, step, state, tokens=tokens, disk_low=False, is_final=True)
    else:
        _wait_for_local(run, step)


def _wait_for_local(run: Run, step: int) -> None:
    with timeouts.storage(run.job, "the last local checkpoint", step, run.local, LOCAL_SAVE):
        run.local.wait()


def check_state(run: Run, step: int, state: State, *, checked: Action) -> None:
    """Check the state before an unplanned save; `checked` are the actions whose checks the step has made."""
    with finishing_saves(run), run.job.watchdog.waiting(f"the check of the state after step {step}", step):
        if not checked & Action.CHECK_REPLICAS:
            run.replicas.require(step, state)
        if not checked & ANY_SAVE:
            run.progress.require(step, check_finite(run, step, state))


def check_finite(run: Run, step: int, state: State) -> jax.Array:
    """Start the check that the state after `step` is finite; the first call may wait for its program."""
    run.finite.compile(run.compiler)
    if not run.finite.is_ready:
        began = time.monotonic()
        with timeouts.compilation(run.job, "the program 'finite'", step, lambda: run.compiler.busy, "finite"):
            cached = run.finite.wait()
            run.job.events.write("compile", None, time.monotonic() - began, cached=cached, program="finite")
    return run.finite.begin(state)


@contextlib.contextmanager
def finishing_saves(run: Run) -> Iterator[None]:
    """Wait for saves of earlier steps before raising a FatalError of the body.

    The body fails on all hosts in the same way, so all wait for the same saves, at most `checkpoint.hang_seconds`.
    """
    try:
        yield
    except FatalError:
        deadline = time.monotonic() + timeouts.limits(run.job).storage(SAVE)
        for tier in (run.checkpoints, run.local):
            if not tier.join(max(0.0, deadline - time.monotonic())):
                metrics.say("warning: timed out waiting for the save in progress")
        raise
