"""Evaluation of a state on the held-out records."""

# mypy: disallow-untyped-calls=False

import time
from typing import Any

import jax

from trainer.data import batches as data
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
        programs = self._run.programs
        if self._program is None:
            arguments = programs.state["params"], programs.blocks, programs.state.get("averages")
            self._program = get_compiled(self._run, "evaluate", programs.evaluate, *arguments)
        return evaluate(self._run, self._program, state, step=step)


def evaluate(run: Run, program: Any, state: State, *, step: int) -> float:
    """Record and return the mean loss over the held-out records, as computed by the compiled `program`."""
    began, watchdog = time.monotonic(), run.job.watchdog
    loss_sum = weight = correct = 0.0
    is_counted = False
    ids = data.eval_ids(run.batch, run.records - run.held_out, run.held_out)
    batches = data.prefetch(run.blocks, ids, run.job.config.data.prefetch)
    while True:
        with watchdog.waiting(f"its data of the evaluation after step {step}", step, is_own=lambda: True):
            blocks = next(batches, None)
        if blocks is None:
            break
        with watchdog.waiting(f"the evaluation after step {step}", step):
            sums = jax.device_get(program(state["params"], blocks, state.get("averages")))
        loss_sum, weight = loss_sum + float(sums.loss), weight + float(sums.weight)
        if sums.correct is not None:
            correct, is_counted = correct + float(sums.correct), True
    loss, accuracy = loss_sum / max(weight, 1.0), correct / max(weight, 1.0) if is_counted else None
    run.progress.record_evaluation(step, loss, accuracy, int(weight), time.monotonic() - began)
    return loss
