"""The initial state of an attempt: the newest complete checkpoint, or fresh parameters."""

# mypy: disallow-untyped-calls=False

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from trainer.checkpoint import compatibility, trunk
from trainer.checkpoint.manager import Checkpoints, array_shapes
from trainer.errors import FatalError
from trainer.hosts import timeouts
from trainer.hosts.measurements import restoration
from trainer.hosts.own_work import OwnWork
from trainer.models.family import Params
from trainer.models.registry import family
from trainer.setup import Run
from trainer.step.programs import State
from trainer.storage import open_place
from trainer.telemetry import metrics


def first_state(run: Run) -> tuple[Any, int, int]:
    """Start restoring the newest checkpoint that is complete on all hosts, or initialize a fresh state.

    Returns (function that waits for the state, its step, tokens trained until then).
    """
    began, job = time.monotonic(), run.job
    checkpoint = _choose(run)
    if checkpoint is not None:
        _check_notes(run, checkpoint.location, checkpoint.notes)
    with timeouts.storage(run.job, "the removal of another attempt's local checkpoints", 0, run.local):
        run.local.settle(checkpoint.step if checkpoint else 0)
    job.events.write("choose", checkpoint.step if checkpoint else 0, time.monotonic() - began)
    if checkpoint is None:
        seed, with_trunk = np.uint32(job.config.run.seed), start_trunk(run)
        init = get_compiled(run, "init", run.programs.init, seed)
        began = time.monotonic()
        state = with_trunk(init(seed))
        job.events.write("restore", 0, time.monotonic() - began, source="init", read=False)
        return lambda: state, 0, 0
    start, notes, source = checkpoint.step, checkpoint.notes, checkpoint.source
    finish = checkpoint.begin()

    def wait_for_state() -> State:
        began = time.monotonic()  # after the compilation of the step, which overlaps the read
        tier = run.local if source == "local" else run.checkpoints
        with timeouts.storage(run.job, f"the restore of step {start}", start, tier, restoration(source)):
            state, read = finish()
            jax.block_until_ready(state)
        job.events.write("restore", start, time.monotonic() - began, source=source, read=read)
        run.record.count_restore(source)
        origin = ("local checkpoint" if source == "local" else "storage") if read else "peer"
        host = job.host.name(job.host.process_id)
        metrics.say(f"{host}: attempt {job.host.attempt} resuming from step {start} ({origin})")
        return state

    # Older checkpoints do not record their tokens; all their steps had the batch size that they record.
    computed_tokens = (
        start * notes.get("global_batch", run.batch) * notes.get("model", {}).get("seq_len", job.config.model.seq_len)
    )
    return wait_for_state, start, notes.get("tokens", computed_tokens)


def start_trunk(run: Run) -> Callable[[State], State]:
    """Start to read the trunk of checkpoint.trunk_path; return the function that puts it into a fresh state.

    Process 0 first checks whether it fits. Raises FatalError if it does not.
    """
    job, model = run.job, run.job.config.model
    path, keys = job.config.checkpoint.trunk_path, family(model).trunk
    if not path or keys is None:
        return lambda state: state
    params: Params = functools.reduce(lambda tree, key: tree[key], keys, run.programs.state["params"])
    expected = {"params": {part: params[part] for part in trunk.PARTS}, "averages": run.programs.state["averages"]}
    check = OwnWork()
    with timeouts.storage(job, "the check of the trunk's checkpoint", 0, check):
        if job.is_first:
            with check:
                checkpoint = trunk.find_checkpoint(path)
                arrays = _checkpoints_of(run, str(checkpoint.place)).shapes(checkpoint.step, checkpoint.notes)
                if problem := trunk.mismatch(checkpoint, model.family, array_shapes(expected), arrays):
                    raise FatalError(problem)
            job.peers.announce("trunk", [str(checkpoint.place), checkpoint.step, checkpoint.notes])
        place, step, notes = job.peers.await_("trunk")
    checkpoints, compiler = _checkpoints_of(run, place), functools.partial(compile_program, run)
    finish = checkpoints.restore(step, notes, run.mesh, expected, compiler, is_partial=True)

    def start(state: State) -> State:
        with timeouts.storage(job, "the read of the trunk", 0, checkpoints):
            read, _ = finish()
            jax.block_until_ready(read)
        if job.leads:
            metrics.say(f"starting with the trunk of step {step} in {place}")
        return state | {"params": _with_trunk(state["params"], keys, read["params"]), "averages": read["averages"]}

    return start


def _checkpoints_of(run: Run, place: str) -> Checkpoints:
    """Return the checkpoints of another run, only to read them."""
    return Checkpoints(open_place(place), 1, {}, run.job.peers, run.job.events)


def _with_trunk(params: Params, keys: tuple[str, ...], parts: Params) -> Params:
    """Return the parameters with these parts of the trunk, which is at `keys`."""
    if not keys:
        return params | parts
    return params | {keys[0]: _with_trunk(params[keys[0]], keys[1:], parts)}


@dataclasses.dataclass(frozen=True, slots=True)
class _InitialCheckpoint:
    """The checkpoint that all hosts resume from."""

    step: int
    notes: dict[str, Any]
    source: str  # local or checkpoint
    location: str
    begin: Callable[[], Callable[[], tuple[State, bool]]]  # starts the read and returns a function that waits for it


def _choose(run: Run) -> _InitialCheckpoint | None:
    """Agree on the newest checkpoint that is complete on all hosts; prefer a local one of the same step."""
    target = run.mesh, run.programs.state, functools.partial(compile_program, run)
    with timeouts.storage(run.job, "the choice of a local checkpoint", 0, run.local):
        local = run.local.choose(run.mesh, run.programs.state)
    with timeouts.storage(run.job, "the choice of a checkpoint", 0, run.checkpoints):
        persistent = run.checkpoints.choose(newer_than=local.step if local else -1)
    if persistent:
        step, notes = persistent
        location = str(run.checkpoints.place / str(step))
        return _InitialCheckpoint(
            step, notes, "checkpoint", location, lambda: run.checkpoints.restore(step, notes, *target)
        )
    if local:
        location = f"of step {local.step} in {run.local.place}"
        return _InitialCheckpoint(local.step, local.notes, "local", location, lambda: run.local.restore(local, *target))
    return None


def _check_notes(run: Run, location: str, notes: dict[str, Any]) -> None:
    """Raise FatalError for a checkpoint of another model or optimizer; warn about changed examples."""
    run_notes = run.checkpoints.notes
    problem = compatibility.mismatch(location, run_notes, notes)
    if problem is not None:
        raise FatalError(problem)
    if run.job.leads:
        for line in compatibility.other_examples(run_notes, notes):
            metrics.say(f"warning: {line}")


def get_compiled(run: Run, name: str, program: Any, *arguments: Any) -> Any:
    """Return a program compiled for these arguments, with the watchdog's timeout of a compilation."""
    with timeouts.compilation(run.job, f"the program {name!r}", 0, lambda: run.compiler.busy, name):
        executable, _ = compile_program(run, name, program, *arguments)
    return executable


def compile_program(run: Run, name: str, program: Any, *arguments: Any) -> tuple[Any, bool]:
    """Compile with `run.compiler` and record the time; return (program, whether it was cached)."""
    began = time.monotonic()
    executable, cached = run.compiler(name, program, *arguments)
    notes: dict[str, Any] = {"loaded": True} if name in run.compiler.loaded else {}
    if jax.default_backend() == "tpu":
        notes["tpu_options"] = run.job.config.run.tpu_options
    run.job.events.write("compile", None, time.monotonic() - began, cached=cached, program=name, **notes)
    return executable, cached
