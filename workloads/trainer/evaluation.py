"""Evaluation of a state on the held-out records."""

# mypy: disallow-untyped-calls=False

import contextlib
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from trainer.data import batches as data
from trainer.data.objects import Annotated, unpack
from trainer.detection import DetectionLog
from trainer.hosts import background, timeouts
from trainer.hosts.measurements import EVALUATION
from trainer.models.family import Predictions
from trainer.resume import get_compiled
from trainer.setup import Run
from trainer.step.programs import State
from trainer.telemetry import metrics
from trainer.translation import BleuSums, bleu_sums

_TAIL_BYTES = 8 << 20  # of metrics.jsonl: those of about 20,000 steps
_ROUNDING_ERROR = 6e-6  # of a score in metrics.jsonl, at most: BLEU has three digits of a hundred


class Evaluation:
    """Evaluation of a run; its programs are compiled at the first call."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._program: EvalPrograms | None = None
        self._rank: Any = None
        self._precisions = Precisions(run)

    def __call__(self, state: State, *, step: int) -> float:
        """Record and return the mean loss over the held-out records after `step`; every host runs the same batches.

        The mAP of detections is recorded later, by `finish` at the latest, unless steps wait for it (`Precisions`).
        """
        area, measure = functools.partial(self._area, step), functools.partial(self._precisions.begin, step=step)
        return evaluate(self._run, self.program, state, step=step, area=area, measure=measure)

    def finish(self) -> None:
        """Wait until everything is recorded; every host must call this."""
        self._precisions.wait()

    @property
    def program(self) -> "EvalPrograms":
        """The compiled programs."""
        programs = self._run.programs
        if self._program is None:
            params, blocks = programs.state["params"], programs.blocks
            averages = programs.state.get("averages")
            sums = get_compiled(self._run, "evaluate", programs.evaluate, params, blocks, averages)
            translate = programs.translate and get_compiled(self._run, "translate", programs.translate, params, blocks)
            detect = programs.detect and get_compiled(self._run, "detect", programs.detect, params, blocks, averages)
            self._program = EvalPrograms(sums, translate, detect)
        return self._program

    def _area(self, step: int, predictions: list[Predictions]) -> float:
        """Return the area under the ROC curve of all batches' predictions."""
        if self._rank is None:  # compiled here, because the number of batches is known only now
            self._rank = get_compiled(self._run, "rank", self._run.programs.rank, predictions)
        with self._run.job.watchdog.waiting(f"the ranking of the evaluation after step {step}", step):
            return float(jax.device_get(self._rank(predictions)).area)


def is_left(run: Run, step: int) -> bool:
    """Return whether the evaluation after `step`, from which the run resumes, is to be measured; every host calls this.

    A host may have died during it, after the state was saved. If the run may end with it, it is measured again, because
    its record has rounded numbers.
    """
    job, limit = run.job, timeouts.limits(run.job).storage()
    subject = f"the record of the evaluation after step {step}"
    with job.watchdog.waiting(subject, step, is_own=lambda: job.is_first, min_seconds=limit):
        if job.is_first:
            content = b""
            with contextlib.suppress(OSError):  # without a record it is measured
                content = (job.out / "metrics.jsonl").part(-_TAIL_BYTES, _TAIL_BYTES)
            known = metrics.evaluation(content, step)
            # Elastic slices have stored their detections, from which the one that leads now measures the mAP.
            has_map = "eval_map" in known or job.host.is_elastic or not run.programs.detect
            is_known = "eval_loss" in known and has_map
            is_complete = is_known and not _may_end_with(known, job.config.run.target_accuracy)
            job.peers.announce("evaluation left", not is_complete)
        return bool(job.peers.await_("evaluation left"))


def _may_end_with(known: Mapping[str, Any], target: float) -> bool:
    """Return whether a run with this target may end with an evaluation of which metrics.jsonl says this."""
    bleu = known.get("eval_bleu")
    scores = (known.get("eval_accuracy"), known.get("eval_map"), known.get("eval_auc"), bleu and bleu / 100)
    score = next((score for score in scores if score is not None), math.inf)
    return 0 < target <= score + _ROUNDING_ERROR


class Precisions:
    """Mean average precision (mAP) of detections: the first host computes it on a thread while the next steps run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._step: int | None = None  # of the evaluation whose mAP is not known yet
        self._result: Callable[[], dict[str, float]] | None = None  # on the first host

    def begin(self, log: DetectionLog, *, step: int) -> dict[str, float]:
        """Begin to compute the mAP of these detections; every host must call this.

        Returns it if the run may end with it (run.target_accuracy), or if MLPerf's log lines have it; otherwise the
        first host records it when it is known, and the result is empty.
        """
        self.wait()
        config = self._run.job.config
        self._step, is_awaited = step, config.run.target_accuracy > 0 or bool(config.observe.mllog)
        if self._run.job.is_first:
            action = functools.partial(self.measure, log, step, records=not is_awaited)
            self._result = background.start(action, "mAP")
        return self.wait() if is_awaited else {}

    def wait(self) -> dict[str, float]:
        """Wait until the mAP is known, and return it; empty if there is none to wait for. Every host must call this."""
        step, self._step, job = self._step, None, self._run.job
        if step is None:
            return {}
        key, limit = f"mAP of step {step}", job.config.observe.data_hang_seconds  # no chip computes
        with job.watchdog.waiting(f"the mAP of the evaluation after step {step}", step, min_seconds=limit):
            if self._result is not None:
                job.peers.announce(key, self._result())
            precisions: dict[str, float] = job.peers.await_(key)
        return precisions

    def measure(self, log: DetectionLog, step: int, *, records: bool = True) -> dict[str, float]:
        """Return the mAP of the detections after `step`, recorded if `records`; the first host calls this."""
        run, began = self._run, time.monotonic()
        precisions = log.precisions(run.job.config.model, self._annotated)
        if records:
            run.progress.record_precisions(step, precisions, run.held_out, time.monotonic() - began)
        return precisions

    @functools.cached_property
    def _annotated(self) -> list[Annotated]:
        """Annotations of the held-out images; the first host reads data."""
        run = self._run
        assert run.read is not None
        ids_N = np.arange(run.records - run.held_out, run.records)
        parts = (run.read.documents(ids_N[n : n + run.batch]) for n in range(0, len(ids_N), run.batch))
        return [unpack(document)[1] for part in parts for document in part]


class EvalPrograms(NamedTuple):
    """Compiled programs that an evaluation calls for each batch."""

    sums: Any
    translate: Any  # None for a model that does not translate
    detect: Any = None  # None for a model that does not detect objects


class EvalSums(NamedTuple):
    """Sums over held-out records; `correct` is NaN if it is not counted, `bleu` None without translations."""

    loss: float = 0.0
    weight: float = 0.0
    correct: float = math.nan
    bleu: BleuSums | None = None

    @classmethod
    def of(cls, scalars: Sequence[float]) -> "EvalSums":
        """Return the sums with these numbers, as `scalars` returns them."""
        loss, weight, correct, *bleu = scalars
        return cls(loss, weight, correct, BleuSums.of(tuple(bleu)) if bleu else None)

    @property
    def scalars(self) -> list[float]:
        """All sums as one list."""
        return [self.loss, self.weight, self.correct, *(self.bleu.numbers if self.bleu else ())]


def evaluate(
    run: Run,
    program: EvalPrograms,
    state: State,
    *,
    step: int,
    area: Callable[[list[Predictions]], float] | None = None,
    measure: Callable[[DetectionLog], dict[str, float]] | None = None,
) -> float:
    """Record and return the mean loss over the held-out records, as computed by the compiled programs.

    If the model gives predictions, their `area` under the ROC curve is recorded as well; of detections, the mAP that
    `measure` returns, if it does not record it later.
    """
    began, predictions = time.monotonic(), list[Predictions]()
    log = DetectionLog() if program.detect and measure else None
    sums = sum_batches(run, program, state, slice(None), step=step, predictions=predictions, log=log)
    auc = area(predictions) if area and predictions else None
    precisions = measure(log) if measure and log else None
    return record(run, sums, step=step, seconds=time.monotonic() - began, auc=auc, precisions=precisions)


def sum_batches(
    run: Run,
    program: EvalPrograms,
    state: State,
    rows: slice,
    *,
    step: int,
    predictions: list[Predictions] | None = None,
    log: DetectionLog | None = None,
) -> EvalSums:
    """Return the sums over these rows of all batches of held-out records.

    The model's predictions for each batch, if it gives any, are appended to `predictions`, and its detections to `log`
    on the first host.
    """
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
            result = program.sums(state["params"], blocks, state.get("averages"))
            sums = jax.device_get(result._replace(predictions=None))
            translations = program.translate and program.translate(state["params"], blocks)
            bleu = translations and bleu_sums(run.job.config, translations)
            if log is not None:
                detections = program.detect(state["params"], blocks, state.get("averages"))
                log.add(*jax.device_get(detections)) if run.job.is_first else jax.block_until_ready(detections)
        run.job.measurements.record(EVALUATION, time.monotonic() - began)
        if predictions is not None and result.predictions is not None:
            predictions.append(result.predictions)
        correct = math.nan if sums.correct is None else float(sums.correct)
        total = _add(total, EvalSums(float(sums.loss), float(sums.weight), correct, bleu))


def _add(total: EvalSums, sums: EvalSums) -> EvalSums:
    correct = (0.0 if math.isnan(total.correct) else total.correct) + sums.correct
    bleu = total.bleu + sums.bleu if total.bleu and sums.bleu else sums.bleu
    return EvalSums(total.loss + sums.loss, total.weight + sums.weight, correct, bleu)


def record(
    run: Run,
    sums: EvalSums,
    *,
    step: int,
    seconds: float,
    auc: float | None = None,
    precisions: Mapping[str, float] | None = None,
) -> float:
    """Record an evaluation from its sums, and the AUC and mAP if there are any; return the mean loss."""
    weight = max(sums.weight, 1.0)
    accuracy = None if math.isnan(sums.correct) else sums.correct / weight
    bleu = sums.bleu.bleu() if sums.bleu else None
    run.progress.record_evaluation(
        step, sums.loss / weight, accuracy, int(sums.weight), seconds, bleu=bleu, auc=auc, precisions=precisions or {}
    )
    return sums.loss / weight
