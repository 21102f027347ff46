"""Records of finished steps: metrics.jsonl, events, log lines, and the hosts' flags."""

# mypy: disallow-untyped-calls=False

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from trainer.data.records import Kind, record
from trainer.errors import FatalError, Problem
from trainer.hosts.job import Job
from trainer.models.mfu import mfu
from trainer.models.mfu import peak as read_peak
from trainer.models.registry import family
from trainer.observe.memory_in_use import memory_in_use
from trainer.telemetry import metrics
from trainer.telemetry.leader_lines import LeaderLines
from trainer.telemetry.mllog import MllogFile
from trainer.telemetry.tensorboard import EventFile
from xpk_shared.percentiles import percentiles

Ids = Callable[[int], npt.NDArray[np.int64]]  # record ids of a step; negative ids are padding
_NAMED = 8  # records in the log line; the event has all
_ARRAYS = 2  # arrays in the log line
_PRECISIONS = {"map": "mAP", "mask_map": "mask mAP"}  # names in metrics.jsonl and in the log


@dataclasses.dataclass(frozen=True, slots=True)
class Flags:
    """Union of all hosts' flags of a step, the same on every host."""

    disk_low: bool = False
    differ: int = 0  # arrays whose replicas differ (checkpoint/replica_check.py)
    seconds: float = 0.0  # duration of the step, as measured on this host


@dataclasses.dataclass(slots=True)
class Pending:
    """A step that is dispatched and may not be finished."""

    step: int
    out: Any
    dispatched: float
    end_time: "Future[float]"


class Progress:
    """Recorder that fetches the metrics of steps in order."""

    def __init__(
        self,
        job: Job,
        batch: int,
        chips: int,
        ids: Ids,
        int8_share: float = 0.0,
        arrays: Sequence[str] = (),
        *,
        length: Callable[[int], int] | None = None,
        is_emulated: bool = False,
        mllog: MllogFile | None = None,
    ) -> None:
        """Prepare; `arrays` names the arrays that "broken" reports as not finite (checkpoint/finite_check.py).

        `length` returns the tokens of a step's sentences, if steps differ.
        `is_emulated` chips have no utilization, because the peak is that of the chips that they emulate.
        """
        self._job, self._chips, self._ids, self._int8_share = job, chips, ids, int8_share
        self._arrays, self._mllog = arrays, mllog
        self._accuracy, self._mask_accuracy = math.nan, math.nan
        example = record(job.config.model)
        self._items, self._noun = batch * example.items, example.noun
        self._eval_noun = "token" if example.kind is Kind.TRANSLATIONS else example.noun
        self._length = length
        self._lines = _metric_lines(job) if job.is_first else None
        self._board: EventFile | None = None
        names = ("XPK_PEAK_FLOPS", "XPK_PEAK_INT8_OPS")
        self._peaks = [None if is_emulated else read_peak(os.environ, name) for name in names]
        self._finished_at = 0.0
        self._steps = 0
        self._window: list[float] = []  # durations of the steps since the last log line
        self._watcher = ThreadPoolExecutor(1, "step-end")
        self.loss = math.nan

    @property
    def has_reached_target(self) -> bool:
        """True if the last evaluation had the accuracy, mAP, AUC or hundredth of BLEU at which the run ends."""
        run = self._job.config.run
        has_masks = not run.target_mask_accuracy or self._mask_accuracy >= run.target_mask_accuracy
        return 0 < run.target_accuracy <= self._accuracy and has_masks

    def begin(self, step: int, *, evaluates: bool = False) -> None:
        """Record that training starts or resumes after `step`, with its evaluation if `evaluates`."""
        if self._mllog is not None:
            self._mllog.begin(step, evaluates=evaluates)

    def end(self, step: int) -> None:
        """Record the end of the run."""
        if self._mllog is not None:
            self._mllog.end(step)

    def watch(self, step: int, out: Any, dispatched: float) -> Pending:
        """Watch a step that was just dispatched; `dispatched` is the time before that.

        A thread records the end of the step. Dispatching a step may block until the previous one has ended, or longer,
        so a time taken by the caller would attribute seconds of one step to the other.
        """
        return Pending(step, out, dispatched, self._watcher.submit(_ended, out["loss"]))

    def finish(self, pending: Pending) -> Flags:
        """Wait for a step, record it and return its flags.

        Raises FatalError if its loss, its gradient, or the state after it (if checked) is not finite, so that the state
        is not saved.
        """
        out = jax.device_get(pending.out)
        ended = pending.end_time.result()
        seconds = max(ended - max(self._finished_at, pending.dispatched), 1e-6)
        self._finished_at = ended
        self.loss = float(out["loss"])
        self._steps += 1
        self._job.watchdog.record_step(seconds)
        self._record(pending.step, out, seconds)
        values = {"loss": self.loss, "norm of the gradient": float(out["grad_norm"])}
        self._check_finite(pending.step, values, out.get("broken", ()))
        disk_low, _ = (bool(flag) for flag in np.asarray(out["flags"]))
        return Flags(disk_low, int(out.get("differ", 0)), seconds)

    def require(self, step: int, broken: Any) -> None:
        """Wait for a check of the state after `step`. Raises FatalError if it is not finite."""
        self._check_finite(step, {}, jax.device_get(broken))

    def record_evaluation(
        self,
        step: int,
        loss: float,
        accuracy: float | None,
        items: int,
        seconds: float,
        *,
        bleu: float | None = None,
        auc: float | None = None,
        precisions: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Record an evaluation of `items` tokens, images or examples; the items of pairs are the translations' tokens.

        `accuracy` is the fraction of correct ones, `bleu` that of a model's translations, 0 to 100, and `auc` the area
        under the ROC curve, where they are computed. `precisions` are the mAP of detections, "map" of boxes and
        "mask_map" of masks; they are the accuracies at which the run ends.
        """
        self._job.events.write("eval", step, seconds, eval_loss=loss)
        scores = (accuracy, precisions.get("map"), auc, None if bleu is None else bleu / 100)
        self._accuracy = next((score for score in scores if score is not None), math.nan)
        self._mask_accuracy = precisions.get("mask_map", math.nan)
        if self._mllog is not None:
            self._mllog.record_evaluation(step, self._accuracy, seconds, mask_accuracy=self._mask_accuracy)
        noun = self._eval_noun
        if self._lines is not None:
            known = {} if accuracy is None else {"eval_accuracy": round(accuracy, 6)}
            known |= {} if bleu is None else {"eval_bleu": round(bleu, 3)}
            known |= {} if auc is None else {"eval_auc": auc}
            known |= _precision_fields(precisions)
            self._write_evaluation(step, {"eval_loss": loss, f"eval_{noun}s": items} | known)
        if self._job.leads:
            accuracy_text = "" if accuracy is None else f"   accuracy {accuracy:.1%}"
            score = "" if bleu is None else f"   BLEU {bleu:.2f}"
            score += "" if auc is None else f"   AUC {auc:.5f}"
            score += _precision_text(precisions)
            metrics.say(f"eval {step:6d}   loss {loss:.4f}{accuracy_text}{score}   {noun}s {items:,}")

    def record_precisions(self, step: int, precisions: Mapping[str, float], items: int, seconds: float) -> None:
        """Record the mAP of the evaluation after `step`, which took these seconds while training went on."""
        counts = {f"eval_{self._noun}s": items, "eval_map_seconds": round(seconds, 3)}
        self._write_evaluation(step, _precision_fields(precisions) | counts)
        if self._job.leads:
            metrics.say(f"eval {step:6d}{_precision_text(precisions)}   {seconds:.3f} s")

    def _write_evaluation(self, step: int, values: Mapping[str, Any]) -> None:
        """Write a line of an evaluation."""
        if self._lines is not None:
            line = {"time": time.time(), "attempt": self._job.host.attempt, "step": step} | dict(values)
            self._lines.write(line)
            self._write_to_board(line)

    def _check_finite(self, step: int, values: dict[str, float], broken: Sequence[bool]) -> None:
        """Raise FatalError if a step's loss, gradient or state is not finite, after an event with its records.

        If the loss or gradient is not finite, neither is the state; then the error names only the loss or gradient.
        """
        defects = [
            f"the {name} of step {step} is {value}" for name, value in values.items() if not math.isfinite(value)
        ]
        arrays = [name for name, is_bad in zip(self._arrays, broken, strict=False) if is_bad]
        if arrays and not defects:
            more_arrays = f" and {len(arrays) - _ARRAYS} more" if len(arrays) > _ARRAYS else ""
            defects = [f"after step {step} the state is not finite ({', '.join(arrays[:_ARRAYS])}{more_arrays})"]
        if not defects:
            return
        records = [int(record) for record in self._ids(step) if record >= 0]
        if self._job.leads:
            texts = {name: str(value) for name, value in values.items()}
            self._job.events.write("not_finite", step, values=texts, arrays=arrays, records=records)
        named = ", ".join(map(str, records[:_NAMED]))
        more = f" and {len(records) - _NAMED} more, listed in the event not_finite" if len(records) > _NAMED else ""
        raise FatalError(
            Problem(
                f"{' and '.join(defects)}; its records are {named}{more}",
                "A restart would repeat this bit for bit; use a lower optim.lr, or inspect these records",
            )
        )

    def _record(self, step: int, out: dict[str, Any], seconds: float) -> None:
        every = self._job.config.run.log_every
        if self._steps == 1 or step % every == 0:
            self._job.events.write("step", step, seconds, at_once=self._steps == 1)
        if self._lines is None:
            return
        speed, (peak, int8) = self._items / seconds, self._peaks
        flops = self._flops_per_item(step)
        record: dict[str, Any] = {
            "time": time.time(),
            "attempt": self._job.host.attempt,
            "step": step,
            "total_steps": self._job.config.run.steps,
            "loss": self.loss,
            "loss_hex": self.loss.hex(),
            "grad_norm": float(out["grad_norm"]),
            "learning_rate": float(out["learning_rate"]),
            "step_seconds": round(seconds, 4),
            "data_seconds": int(np.asarray(out["flags"])[1]) / 1000,
            f"{self._noun}s_per_second": round(speed, 1),
            "mfu": mfu(flops, speed, self._chips, peak, self._int8_share, int8),
            "emfu": mfu(flops, speed, self._chips, peak),
        }
        is_logged = self._steps == 1 or step % every == 0 or step == self._job.config.run.steps
        self._window.append(seconds)
        if is_logged:
            record["window"] = {"steps": len(self._window)} | percentiles(self._window)
            record["memory"] = memory_in_use()
            self._window = []
        self._lines.write(record, at_once=self._steps == 1)
        self._write_to_board(record)
        if is_logged and self._job.leads:
            columns = ("mfu", "emfu") if self._int8_share else ("mfu",)
            utilization = "".join(f"   {name} {record[name]:.1%}" for name in columns if record[name] is not None)
            rate = f"{speed:9,.0f} {self._noun}s/s"
            metrics.say(f"step {step:6d}   loss {self.loss:.4f}   {rate}   {seconds:7.3f} s{utilization}")

    def _flops_per_item(self, step: int) -> float:
        """Return the model FLOPs of a step per token, image or pair."""
        model = self._job.config.model
        if self._length is not None:
            model = dataclasses.replace(model, seq_len=self._length(step))
        return family(model).flops_per_item(model)

    def _write_to_board(self, record: dict[str, Any]) -> None:
        """Write a record to TensorBoard's event file, which the process that leads creates with its first record."""
        if self._job.config.observe.tensorboard and self._job.leads:
            self._board = self._board or EventFile(self._job.out, self._job.host.attempt)
            self._board.write(record)


def _precision_fields(precisions: Mapping[str, float]) -> dict[str, float]:
    return {f"eval_{name}": round(value, 6) for name, value in precisions.items()}


def _precision_text(precisions: Mapping[str, float]) -> str:
    return "".join(f"   {_PRECISIONS[name]} {value:.4f}" for name, value in precisions.items())


def _metric_lines(job: Job) -> metrics.JsonLines | LeaderLines:
    place = job.out / "metrics.jsonl"
    return metrics.JsonLines(place) if job.slices is None else LeaderLines(place, lambda: job.leads)


def _ended(loss: Any) -> float:
    """Wait for one metric of a step and return its arrival time; all metrics of a step arrive together."""
    jax.block_until_ready(loss)
    return time.monotonic()
