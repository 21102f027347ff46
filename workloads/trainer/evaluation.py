"""Evaluation of a state on the held-out records."""

# mypy: disallow-untyped-calls=False

import functools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from trainer.data import batches as data
from trainer.models.family import Predictions
from trainer.resume import get_compiled
from trainer.setup import Run
from trainer.step.programs import State


class Evaluation:
    """Evaluation of a run; its programs are compiled at the first call."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._program: Any = None
        self._rank: Any = None

    def __call__(self, state: State, *, step: int) -> float:
        """Record and return the mean loss over the held-out records after `step`; every host runs the same batches."""
        return evaluate(self._run, self.program, state, step=step, area=functools.partial(self._area, step))

    @property
    def program(self) -> Any:
        """The compiled program."""
        programs = self._run.programs
        if self._program is None:
            arguments = programs.state["params"], programs.blocks, programs.state.get("averages")
            self._program = get_compiled(self._run, "evaluate", programs.evaluate, *arguments)
        return self._program

    def _area(self, step: int, predictions: list[Predictions]) -> float:
        """Return the area under the ROC curve of all batches' predictions."""
        if self._rank is None:
            self._rank = get_compiled(self._run, "rank", self._run.programs.rank, predictions)
        with self._run.job.watchdog.waiting(f"the ranking of the evaluation after step {step}", step):
            return float(jax.device_get(self._rank(predictions)).area)


class EvalSums(NamedTuple):
    """Sums over held-out records; `correct` is NaN if it is not counted."""

    loss: float = 0.0
    weight: float = 0.0
    correct: float = math.nan


def evaluate(
    run: Run, program: Any, state: State, *, step: int, area: Callable[[list[Predictions]], float] | None = None
) -> float:
    """Record and return the mean loss over the held-out records, as computed by the compiled `program`.

    If the model gives predictions, their `area` under the ROC curve is recorded as well.
    """
    began, predictions = time.monotonic(), list[Predictions]()
    sums = sum_batches(run, program, state, slice(None), step=step, predictions=predictions)
    auc = area(predictions) if area and predictions else math.nan
    return record(run, sums, step=step, seconds=time.monotonic() - began, auc=auc)


def sum_batches(
    run: Run, program: Any, state: State, rows: slice, *, step: int, predictions: list[Predictions] | None = None
) -> EvalSums:
    """Return the sums over these rows of all batches of held-out records; add what the model predicts for each."""
    watchdog, total = run.job.watchdog, EvalSums()
    ids = (ids_B[rows] for ids_B in data.eval_ids(run.batch, run.records - run.held_out, run.held_out))
    batches = data.prefetch(run.blocks, ids, run.job.config.data.prefetch)
    while True:
        with watchdog.waiting(f"its data of the evaluation after step {step}", step, is_own=lambda: True):
            blocks = next(batches, None)
        if blocks is None:
            return total
        with watchdog.waiting(f"the evaluation after step {step}", step):
            result = program(state["params"], blocks, state.get("averages"))
            sums = jax.device_get(result._replace(predictions=None))
        if predictions is not None and result.predictions is not None:
            predictions.append(result.predictions)
        correct = math.nan if sums.correct is None else float(sums.correct)
        counted = 0.0 if math.isnan(total.correct) else total.correct
        total = EvalSums(total.loss + float(sums.loss), total.weight + float(sums.weight), counted + correct)


def record(run: Run, sums: EvalSums, *, step: int, seconds: float, auc: float = math.nan) -> float:
    """Record an evaluation from its sums; return the mean loss."""
    weight = max(sums.weight, 1.0)
    accuracy = None if math.isnan(sums.correct) else sums.correct / weight
    run.progress.record_evaluation(
        step, sums.loss / weight, accuracy, int(sums.weight), seconds, None if math.isnan(auc) else auc
    )
    return sums.loss / weight
