"""Evaluation of a state on the held-out records."""

# mypy: disallow-untyped-calls=False

import math
import time
from typing import Any, NamedTuple

import jax

from trainer.data import batches as data
from trainer.hosts import timeouts
from trainer.hosts.measurements import EVALUATION
from trainer.resume import get_compiled
from trainer.setup import Run
from trainer.step.programs import State


class Evaluation:
    """Evaluation of a run; its program is compiled at the first call."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._program: Any = None

    def __call__(self, state: State, *, step: int) -> float:
        """Record and return the mean loss over the held-out records after `step`; every host runs the same batches."""
        return evaluate(self._run, self.program, state, step=step)

    @property
    def program(self) -> Any:
        """The compiled program."""
        programs = self._run.programs
        if self._program is None:
            arguments = programs.state["params"], programs.blocks, programs.state.get("averages")
            self._program = get_compiled(self._run, "evaluate", programs.evaluate, *arguments)
        return self._program


class EvalSums(NamedTuple):
    """Sums over held-out records; `correct` is NaN if it is not counted."""

    loss: float = 0.0
    weight: float = 0.0
    correct: float = math.nan


def evaluate(run: Run, program: Any, state: State, *, step: int) -> float:
    """Record and return the mean loss over the held-out records, as computed by the compiled `program`."""
    began = time.monotonic()
    sums = sum_batches(run, program, state, slice(None), step=step)
    return record(run, sums, step=step, seconds=time.monotonic() - began)


def sum_batches(run: Run, program: Any, state: State, rows: slice, *, step: int) -> EvalSums:
    """Return the sums over these rows of all batches of held-out records."""
    watchdog, total = run.job.watchdog, EvalSums()
    ids = (ids_B[rows] for ids_B in data.eval_ids(run.batch, run.records - run.held_out, run.held_out))
    batches = data.prefetch(run.blocks, ids, run.job.config.data.prefetch)
    while True:
        least, data_of = timeouts.limits(run.job).evaluation(), f"its data of the evaluation after step {step}"
        with watchdog.waiting(data_of, step, is_own=lambda: True, min_seconds=least):
            blocks = next(batches, None)
        if blocks is None:
            return total
        began = time.monotonic()
        with watchdog.waiting(f"the evaluation after step {step}", step, min_seconds=least):
            sums = jax.device_get(program(state["params"], blocks, state.get("averages")))
        run.job.measurements.record(EVALUATION, time.monotonic() - began)
        correct = math.nan if sums.correct is None else float(sums.correct)
        counted = 0.0 if math.isnan(total.correct) else total.correct
        total = EvalSums(total.loss + float(sums.loss), total.weight + float(sums.weight), counted + correct)


def record(run: Run, sums: EvalSums, *, step: int, seconds: float) -> float:
    """Record an evaluation from its sums; return the mean loss."""
    weight = max(sums.weight, 1.0)
    accuracy = None if math.isnan(sums.correct) else sums.correct / weight
    run.progress.record_evaluation(step, sums.loss / weight, accuracy, int(sums.weight), seconds)
    return sums.loss / weight
