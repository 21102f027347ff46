"""Small charts of the report: quantities of each step that the trainer measures or another program logs, over steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from xpk.jobs.report.charts import Plot, Series, thinned
from xpk.jobs.report.curves import Run
from xpk.jobs.report.record import StepRecord
from xpk.jobs.report.wording import duration, percent

_MIN_MFU = 0.001  # on CPUs the share of a TPU's peak is close to 0 and meaningless


@dataclass(frozen=True, slots=True)
class Signal:
    """A quantity of a step. `read` returns None for a step without it; `show` formats a value with its unit."""

    label: str
    read: Callable[[StepRecord], float | None]
    show: Callable[[float], str]


def _mfu_percent(step: StepRecord) -> float | None:
    return None if step.mfu is None or step.mfu < _MIN_MFU else step.mfu * 100


SIGNALS = (
    Signal("Step time, seconds", lambda step: step.seconds or None, duration),
    Signal("Tokens per second", lambda step: step.tokens_per_second, lambda value: f"{value:,.0f} tokens/s"),
    Signal("Images per second", lambda step: step.images_per_second, lambda value: f"{value:,.0f} images/s"),
    Signal("Pairs per second", lambda step: step.pairs_per_second, lambda value: f"{value:,.0f} pairs/s"),
    Signal("Examples per second", lambda step: step.examples_per_second, lambda value: f"{value:,.0f} examples/s"),
    Signal("Learning rate", lambda step: step.learning_rate, lambda value: f"{value:.3g}"),
    Signal("Gradient norm", lambda step: step.grad_norm, lambda value: f"{value:.4g}"),
    Signal("MFU, percent", _mfu_percent, lambda value: percent(value / 100)),
    Signal("Accelerator memory of slice 0 host 0, GiB", lambda step: step.chip_gib, lambda value: f"{value:.2f} GiB"),
    Signal("Host memory of slice 0 host 0, GiB", lambda step: step.host_gib, lambda value: f"{value:.2f} GiB"),
)


def signal_plots(run: Run) -> list[Plot]:
    """Return one plot for each quantity that at least two steps have. Lost steps are omitted."""
    plots = []
    for signal in (*SIGNALS, *_others(run)):
        values = [(step, value) for step in run.record.steps if (value := signal.read(step)) is not None]
        if len(values) < 2:
            continue
        plots.append(
            Plot(
                label=signal.label,
                x_title="step",
                series=[Series("steps", [(step.step, value) for step, value in values])],
                hover=[(step.step, value, _text(signal, step, value)) for step, value in thinned(values)],
            )
        )
    return plots


def _others(run: Run) -> list[Signal]:
    names = dict.fromkeys(name for step in run.record.steps for name in step.numbers)
    return [Signal(name, partial(_number, name), lambda value: f"{value:.4g}") for name in names]


def _number(name: str, step: StepRecord) -> float | None:
    return step.numbers.get(name)


def _text(signal: Signal, step: StepRecord, value: float) -> str:
    name = signal.label.partition(",")[0].lower()
    return f"step {step.step:,} · {name} {signal.show(value)}"
