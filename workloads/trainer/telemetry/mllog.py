"""MLPerf's log lines (`:::MLLOG`) of a run, in mllog.txt of the output folder.

Names and order of the lines are those of MLPerf Training 4.0, the last rules with ResNet-50 and BERT, and of 0.7: the
last ones with the Transformer, GNMT and the first DLRM, and those that SSD and Mask R-CNN follow. The package
mlperf_logging checks them. An attempt that resumes a run continues its lines: each is written once, those of repeated
steps and evaluations are not repeated, and so the time to train includes restarts.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from trainer.config import CROP_ATTEMPTS, TRANSLATION_FAMILIES, Config
from trainer.errors import Problem
from trainer.telemetry.metrics import JsonLines
from xpk_shared.storage import Place

PREFIX = ":::MLLOG "
_DIGITS = 9  # significant digits of numbers that are computed from settings
_CHOICES = {"division": ("closed", "open"), "status": ("cloud", "onprem", "preview", "research")}
_POINT, _START, _END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"


class Benchmark(NamedTuple):
    """The benchmark of a model family."""

    name: str
    target: float  # accuracy, mAP of boxes, AUC, or hundredth of BLEU at which training is complete
    hyperparameters: Callable[[Config, int, int], dict[str, Any]]  # of a batch size and a number of training examples
    mask_target: float = 0.0  # mAP of masks at which it is complete; 0 for a model without masks


def _resnet(config: Config, batch: int, trained: int) -> dict[str, Any]:
    optim, warmup_epochs = config.optim, _rounded(config.optim.warmup * batch / trained)
    if optim.name != "lars":
        return {"opt_name": optim.name, "opt_base_learning_rate": optim.lr}
    return {
        "opt_name": optim.name,
        "lars_opt_base_learning_rate": optim.lr,
        "lars_opt_end_learning_rate": _rounded(optim.lr * optim.final_fraction),
        "lars_opt_learning_rate_decay_poly_power": optim.power,
        "lars_opt_learning_rate_decay_steps": config.run.steps - optim.warmup,
        "lars_epsilon": 0.0,
        "lars_opt_learning_rate_warmup_epochs": warmup_epochs,
        "lars_opt_momentum": optim.momentum,
        "lars_opt_weight_decay": optim.weight_decay,
    }


def _bert(config: Config, batch: int, trained: int) -> dict[str, Any]:
    optim = config.optim
    return {
        "opt_name": optim.name,
        "opt_base_learning_rate": optim.lr,
        "opt_lamb_epsilon": optim.eps,
        "opt_learning_rate_training_steps": config.run.steps,
        "opt_learning_rate_warmup_steps": optim.warmup,
        "num_warmup_steps": optim.warmup,
        "start_warmup_step": 0,
        "opt_lamb_beta_1": optim.b1,
        "opt_lamb_beta_2": optim.b2,
        "opt_lamb_weight_decay_rate": optim.weight_decay,
    }


def _dlrm(config: Config, batch: int, trained: int) -> dict[str, Any]:
    optim, rates = config.optim, _rates(config)
    if optim.name != "sgd":
        return rates
    return rates | {
        "lr_decay_start_steps": optim.warmup,
        "sgd_opt_base_learning_rate": optim.lr,
        "sgd_opt_learning_rate_decay_poly_power": optim.power,
        "sgd_opt_learning_rate_decay_steps": config.run.steps - optim.warmup,
    }


def _transformer(config: Config, batch: int, trained: int) -> dict[str, Any]:
    optim, betas = config.optim, {"opt_adam_beta_1": config.optim.b1, "opt_adam_beta_2": config.optim.b2}
    lengths = {"max_sequence_length": config.model.seq_len}
    return _rates(config) | betas | {"opt_adam_epsilon": optim.eps} | lengths


def _gnmt(config: Config, batch: int, trained: int) -> dict[str, Any]:
    """The decay is a function of every step, by its name; that of the reference is a factor at an interval."""
    optim = config.optim
    return _rates(config) | {
        "opt_learning_rate_alt_warmup_func": "linear",
        "opt_learning_rate_alt_decay_func": optim.schedule,
        "opt_learning_rate_decay_factor": optim.final_fraction,
        "opt_learning_rate_decay_interval": 1,
        "opt_learning_rate_decay_steps": config.run.steps - optim.warmup,
        "opt_learning_rate_remain_steps": optim.warmup,
        "max_sequence_length": config.model.seq_len,
    }


def _ssd(config: Config, batch: int, trained: int) -> dict[str, Any]:
    optim = config.optim
    boundaries = [_whole_epochs(step, batch, trained) for step in optim.decay_boundaries]
    return _rates(config) | {
        "opt_weight_decay": optim.weight_decay,
        "opt_learning_rate_warmup_factor": optim.warmup_factor,
        **({"opt_learning_rate_decay_boundary_epochs": boundaries} if boundaries else {}),
        "model_bn_span": config.model.norm_examples or batch,
        "max_samples": CROP_ATTEMPTS,
    }


def _mask_rcnn(config: Config, batch: int, trained: int) -> dict[str, Any]:
    optim, model, steps = config.optim, config.model, config.optim.decay_boundaries
    decay = {"opt_learning_rate_decay_factor": optim.decay_factor, "opt_learning_rate_decay_steps": list(steps)}
    return _rates(config) | {
        "opt_weight_decay": optim.weight_decay,
        "opt_learning_rate_warmup_factor": optim.warmup_factor,
        **(decay if steps else {}),
        "num_image_candidates": model.proposals,
        "min_image_size": model.short_side or min(model.image_sides),
        "max_image_size": model.long_side or max(model.image_sides),
    }


def _whole_epochs(step: int, batch: int, trained: int) -> float:
    """Return the epochs up to a step: a whole number if the step is the nearest one to its end."""
    epochs = step * batch / trained
    return round(epochs) if round(round(epochs) * trained / batch) == step else _rounded(epochs)


def _rates(config: Config) -> dict[str, Any]:
    """Return the lines of the optimizer and its rate; AdamW without decay is Adam."""
    optim = config.optim
    name = "adam" if optim.name == "adamw" and not optim.weight_decay else optim.name
    rates = {"opt_base_learning_rate": optim.lr, "opt_learning_rate_warmup_steps": optim.warmup}
    return {"opt_name": name, **rates}


BENCHMARKS = {
    "resnet": Benchmark("resnet", 0.759, _resnet),
    "bert": Benchmark("bert", 0.72, _bert),
    "transformer": Benchmark("transformer", 0.25, _transformer),
    "gnmt": Benchmark("gnmt", 0.24, _gnmt),
    "dlrm": Benchmark("dlrm", 0.8025, _dlrm),
    "ssd": Benchmark("ssd", 0.230, _ssd),
    "mask_rcnn": Benchmark("maskrcnn", 0.377, _mask_rcnn, mask_target=0.339),
}
_METADATA = {"max_sequence_length": {"method": "discard"}}  # of longer pairs (data/translations.py)


def problems(config: Config) -> Iterator[Problem]:
    """Yield the problems of settings that require an accuracy or a benchmark."""
    family, submission = config.model.family, config.observe.submission
    if config.run.target_accuracy and family == "decoder":
        message = "run.target_accuracy is not supported by decoder, whose evaluation has no accuracy"
        yield Problem(message, "Omit run.target_accuracy")
    if (
        family in TRANSLATION_FAMILIES
        and not config.model.beam
        and (config.run.target_accuracy or config.observe.mllog)
    ):
        name = "run.target_accuracy" if config.run.target_accuracy else "observe.mllog"
        yield Problem(f"{name} requires translations, but model.beam is 0", f"Set model.beam, or omit {name}")
    if config.run.target_mask_accuracy and not (family == "mask_rcnn" and config.run.target_accuracy):
        message = "run.target_mask_accuracy requires mask_rcnn and run.target_accuracy, the mAP of boxes"
        yield Problem(message, "Omit it, or set run.target_accuracy")
    if not config.observe.mllog:
        return
    if family not in BENCHMARKS:
        yield Problem(f"observe.mllog is not supported by {family}", f"Use {' or '.join(BENCHMARKS)}, or omit it")
    for name in ("org", "platform", *_CHOICES):
        if not submission.get(name):
            message = f"observe.mllog = {config.observe.mllog!r} has no {name}"
            yield Problem(message, "Use org=NAME,platform=NAME,division=open,status=research")
        elif name in _CHOICES and submission[name] not in _CHOICES[name]:
            message = f"observe.mllog has {name}={submission[name]!r}, which is not one of MLPerf's"
            yield Problem(message, f"Use {', '.join(_CHOICES[name])}")
    for name in sorted(set(submission) - {"org", "platform", *_CHOICES}):
        yield Problem(f"observe.mllog has an unknown name {name!r}", "Use org, platform, division and status")


class MllogFile:
    """Writer of a run's lines; process 0 has it."""

    def __init__(
        self, place: Place, config: Config, batch: int, trained: int, held_out: int, *, began_seconds: float
    ) -> None:
        """Continue the lines in `place`, or begin them; `began_seconds` is the Unix time at which the process began."""
        self._config, self._batch, self._trained = config, batch, trained
        self._written = _read_keys(place)
        self._lines = JsonLines(place, prefix=PREFIX)
        self._accuracy, self._mask_accuracy, self._first_epoch = 0.0, 0.0, 0.0
        self._benchmark = benchmark = BENCHMARKS[config.model.family]
        for key, value in config.observe.submission.items():
            self._write(f"submission_{key}", value)
        self._write("submission_benchmark", benchmark.name)
        self._write("cache_clear", False)  # the trainer does not clear the caches of machines
        self._write("init_start", None, _START, seconds=began_seconds)
        values = {
            "seed": config.run.seed,
            "global_batch_size": batch,
            "gradient_accumulation_steps": config.optim.grad_accum_steps,
            "train_samples": trained,
            "eval_samples": held_out,
        }
        for key, value in (values | benchmark.hyperparameters(config, batch, trained)).items():
            self._write(key, value, metadata=_METADATA.get(key))

    def begin(self, step: int, *, evaluates: bool = False) -> None:
        """Record that training starts or resumes after `step`, before its first batch is read.

        With `evaluates` it resumes with the evaluation after `step`, which ends the block of the steps before it.
        """
        self._write("init_stop", None, _END)
        if ("run_start", None) in self._written:
            self._write("xpk_resume", step, metadata=self._position(step))
        self._write("run_start", None, _START)
        every = self._config.run.eval_every
        self._begin_block((step - evaluates) // every * every if every else 0)

    def record_evaluation(self, step: int, accuracy: float, seconds: float, *, mask_accuracy: float = 0.0) -> None:
        """Record an evaluation after `step` that has taken so many seconds and just ended.

        The accuracy is that of the benchmark: a fraction, for translations a hundredth of BLEU. `mask_accuracy` is the
        mAP of masks, of a benchmark that has them.
        """
        now, metadata = time.time(), self._position(step)
        self._accuracy, self._mask_accuracy = accuracy, mask_accuracy
        first = {"first_epoch_num": self._first_epoch}
        self._write("block_stop", None, _END, metadata | first, seconds=now - seconds)
        self._write("eval_start", None, _START, metadata, seconds=now - seconds)
        self._write("eval_stop", None, _END, metadata, seconds=now)
        value = {"BBOX": accuracy, "SEGM": mask_accuracy} if self._benchmark.mask_target else accuracy
        self._write("eval_accuracy", value, metadata=metadata, seconds=now)
        ends_run = self._config.run.target_accuracy > 0 and self._has_reached_target()
        if step < self._config.run.steps and not ends_run:
            self._begin_block(step)

    def end(self, step: int) -> None:
        """Record the end of the run: success if its last evaluation reached the target."""
        status = "success" if self._has_reached_target() else "aborted"
        self._write("run_stop", None, _END, {"status": status} | self._position(step))

    def _has_reached_target(self) -> bool:
        """Return whether the last evaluation reached the run's targets, or without them the benchmark's."""
        run, benchmark = self._config.run, self._benchmark
        target, mask_target = run.target_accuracy, run.target_mask_accuracy
        if not target:
            target, mask_target = benchmark.target, benchmark.mask_target
        return self._accuracy >= target and (not mask_target or self._mask_accuracy >= mask_target)

    def _begin_block(self, step: int) -> None:
        """Record the start of the steps up to the next evaluation."""
        config = self._config.run
        end = min(step + config.eval_every, config.steps) if config.eval_every else config.steps
        first, last = self._position(step), self._position(end)
        count, self._first_epoch = _rounded(last["epoch_num"] - first["epoch_num"]), first["epoch_num"]
        metadata = {"first_epoch_num": first["epoch_num"], "epoch_count": count}
        self._write("block_start", None, _START, metadata | {"samples_count": first["samples_count"]})

    def _position(self, step: int) -> dict[str, Any]:
        """Return the epochs and examples up to a step."""
        return {"epoch_num": _rounded(step * self._batch / self._trained), "samples_count": step * self._batch}

    def _write(
        self,
        key: str,
        value: Any,
        kind: str = _POINT,
        metadata: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> None:
        """Write a line, unless there is one of this key and position."""
        metadata = metadata or {}
        name = key, metadata.get("samples_count") if key != "run_stop" else None
        if name in self._written and key != "xpk_resume":
            return
        self._written.add(name)
        line = {"namespace": "", "time_ms": round(1000 * (seconds or time.time())), "event_type": kind, "key": key}
        self._lines.write(line | {"value": value, "metadata": metadata}, at_once=True)


def _read_keys(place: Place) -> set[tuple[str, int | None]]:
    """Return the key and position of each line."""
    keys = set()
    for text in place.read().decode(errors="replace").splitlines() if place.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # a torn line
            line = json.loads(text.removeprefix(PREFIX))
            keys.add((line["key"], line["metadata"].get("samples_count") if line["key"] != "run_stop" else None))
    return keys


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
