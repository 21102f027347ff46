"""Memory of a run of the bundled trainer, by the trainer's own closed-form estimate, before slices exist."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xpk.jobs.create.notice import Report, ignore
from xpk.jobs.create.trainer_preflight import WARNING, ask_trainer, report_warnings
from xpk.model.accelerators import SliceShape
from xpk.model.errors import CapacityError, UsageError
from xpk.proc import Runner

_ERROR = 0.15  # relative error of the estimate, above all that were measured (docs/results.md)


def estimate(
    runner: Runner,
    shape: SliceShape,
    num_slices: int,
    trainer_args: Sequence[str],
    folder: Path | None = None,
    report: Report = ignore,
) -> dict[str, Any]:
    """Return the trainer's estimate of a run (docs/results.md names its fields); report the trainer's warnings.

    Raises UsageError for settings that the trainer refuses, and for accelerators that it cannot estimate.
    """
    if shape.kind != "tpu":
        raise UsageError(f"the trainer estimates TPUs only, got {shape.name}", hint="see `xpk accelerator list`")
    arguments = ["--tpu-type", shape.name, "--num-slices", str(num_slices), "-o", "json", *trainer_args]
    result = ask_trainer(runner, "estimate", arguments, folder)
    report_warnings(result, report)
    if result.exit_code:
        lines = [line for line in result.stderr.strip().splitlines() if not line.startswith(WARNING)]
        problems = [line.removeprefix("error: ") for line in lines] or [result.last_line]
        raise UsageError("cannot estimate this run", problems=problems, hint="`xpk workload estimate --help`")
    figures: dict[str, Any] = json.loads(result.stdout)
    return figures


def check_memory(
    runner: Runner, shape: SliceShape, num_slices: int, trainer_args: Sequence[str], folder: Path | None = None
) -> str:
    """Raise CapacityError if the trainer's step cannot fit in the chips' memory; return a warning if it may not, or "".

    A run that cannot be estimated passes: `check_trainer` reports the problems of its settings, and all warnings.
    """
    try:
        figures = estimate(runner, shape, num_slices, trainer_args, folder)
    except UsageError:
        return ""
    peak, most = figures["peak_gib"], figures["hbm_gib"]
    needs = f"{figures['config']} needs about {peak:.1f} GiB of each chip's memory, {shape.name} has {most} GiB"
    if peak > most * (1 + _ERROR):
        raise CapacityError(
            needs,
            hint="use a smaller data.batch_per_chip, a larger mesh.tp or larger slices; --no-estimate skips this check",
        )
    return "" if figures["fits"] else f"{needs}: it may not fit; `python -m trainer compile` shows whether it does"
