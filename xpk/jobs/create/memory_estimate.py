"""Memory of a run of the bundled trainer, by the trainer's own closed-form estimate, before slices exist."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from xpk.jobs.create.notice import Report, ignore
from xpk.jobs.create.trainer_preflight import WARNING, ask_trainer, report_warnings
from xpk.model.accelerators import SliceShape
from xpk.model.errors import CapacityError, UsageError
from xpk.proc import Runner

_ERROR = 0.15  # relative error of the estimate, above all that were measured (docs/results.md)


class Estimate(TypedDict):
    """Estimate of a run of the bundled trainer; sizes are for one chip unless they are for the whole run."""

    config: str  # name of the configuration, or the path of its file
    tpu_type: str  # accelerator type of the slices
    num_slices: int  # number of slices
    chips: int  # chips of all slices
    mesh: dict[str, int]  # size of each axis: dp, stages, fsdp and tp
    parameters: int  # parameters of the model
    global_batch: int  # number of examples in a step
    hbm_gib: float  # memory of a chip that a program can use
    fits: bool  # whether `peak_gib` is at most `hbm_gib`
    peak_gib: float  # peak memory of a step
    state_gib: float  # parameters and the optimizer's state
    activations_gib: float  # memory that depends on the batch
    flops_per_step: float  # floating-point operations of all chips in a step, without recomputation
    computed_flops_per_step: float  # floating-point operations of all chips in a step, with recomputation
    dcn_gib_per_step: float  # data sent between slices in a step
    ici_gib_per_step: float  # data sent inside a slice in a step
    step_seconds: float  # lower bound of a step's time
    bound_by: Literal["compute", "ici", "dcn"]  # slowest part of a step
    tokens_per_second: int  # tokens, or examples of DLRM, per second of all chips
    mfu_bound: float  # upper bound of the model FLOPs utilization, 0 to 1; the peak counts int8 products
    emfu_bound: float  # upper bound relative to the bfloat16 peak; may exceed 1 with int8 products
    expected_step_seconds: float  # expected time of a step, with communication that computation does not hide
    expected_mfu: float  # model FLOPs utilization at that time; the peak counts int8 products
    expected_emfu: float  # the same relative to the bfloat16 peak


def estimate(
    runner: Runner,
    shape: SliceShape,
    num_slices: int,
    trainer_args: Sequence[str],
    folder: Path | None = None,
    report: Report = ignore,
    *,
    min_slices: int | None = None,
    command: str = "xpk workload estimate",
) -> Estimate:
    """Return the trainer's estimate of a run (docs/results.md names its fields); report the trainer's warnings.

    `min_slices` is that of elastic slices, `command` the one whose help a hint names. Raises UsageError for settings
    that the trainer refuses, and for accelerators that it cannot estimate.
    """
    if shape.kind != "tpu":
        raise UsageError(f"the trainer estimates TPUs only, got {shape.name}", hint="see `xpk accelerator list`")
    arguments = ["--tpu-type", shape.name, "--num-slices", str(num_slices), "-o", "json"]
    arguments += ["--min-slices", str(min_slices)] if min_slices else []
    result = ask_trainer(runner, "estimate", [*arguments, *trainer_args], folder)
    report_warnings(result, report)
    if result.exit_code:
        lines = [line for line in result.stderr.strip().splitlines() if not line.startswith(WARNING)]
        problems = [line.removeprefix("error: ") for line in lines] or [result.last_line]
        raise UsageError("cannot estimate this run", problems=problems, hint=f"`{command} --help`")
    figures: Estimate = json.loads(result.stdout)
    return figures


def check_memory(
    runner: Runner,
    shape: SliceShape,
    num_slices: int,
    trainer_args: Sequence[str],
    folder: Path | None = None,
    *,
    min_slices: int | None = None,
) -> str:
    """Raise CapacityError if the trainer's step cannot fit in the chips' memory; return a warning if it may not, or "".

    A run that cannot be estimated passes: `check_trainer` reports the problems of its settings, and all warnings.
    """
    try:
        figures = estimate(runner, shape, num_slices, trainer_args, folder, min_slices=min_slices)
    except UsageError:
        return ""
    peak, available = figures["peak_gib"], figures["hbm_gib"]
    needs = f"{figures['config']} needs about {peak:.1f} GiB of each chip's memory, {shape.name} has {available} GiB"
    if peak > available * (1 + _ERROR):
        raise CapacityError(
            needs,
            hint="use a smaller data.batch_per_chip, a larger mesh.tp or larger slices; --no-estimate skips this check",
        )
    return "" if figures["fits"] else f"{needs}: it may not fit; `python -m trainer compile` shows whether it does"
