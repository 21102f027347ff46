"""Candidates of a search: slices with the fastest mesh and batch on them, by the trainer's closed-form estimate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from xpk.jobs.create.notice import Report, ignore
from xpk.jobs.create.trainer_preflight import WARNING, ask_trainer, report_warnings
from xpk.model.accelerators import SliceShape, all_shapes
from xpk.model.errors import UsageError
from xpk.proc import Runner

FAMILIES = ("v5litepod", "v5p", "v6e")  # searched by default
_LEAST_CHIPS, _MOST_CHIPS = 16, 1024  # of a slice, by default
_MOST_SLICES = 256
INT8 = ("forward", "forward,dgrad", "forward,dgrad,wgrad")

RankBy = Literal["bound", "expected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Part of the candidates to search."""

    shapes: Sequence[SliceShape]
    num_slices: Sequence[int]
    max_chips: int
    max_global_batch: int | None = None
    int8: bool = False
    rank_by: RankBy = "bound"


def default_shapes() -> list[SliceShape]:
    """Return the types that are searched by default: powers of two of chips, in the most cubic topology."""
    shapes = [shape for shape in all_shapes() if shape.family in FAMILIES]
    sized = {(shape.family, shape.chips): shape for shape in reversed(shapes)}  # the first of each size
    return [
        shape
        for (_, chips), shape in reversed(sized.items())
        if _LEAST_CHIPS <= chips <= _MOST_CHIPS and chips & (chips - 1) == 0
    ]


def default_numbers() -> list[int]:
    """Return the numbers of slices that are searched by default."""
    return [2**power for power in range(_MOST_SLICES.bit_length())]


def find_candidates(
    runner: Runner, space: Space, trainer_args: Sequence[str], report: Report = ignore
) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of combinations, and the trainer's best estimate on each type and number of slices.

    Raises UsageError for settings that the trainer refuses and for types that it cannot estimate.
    """
    if other := [shape.name for shape in space.shapes if shape.kind != "tpu"]:
        raise UsageError(f"the trainer estimates TPUs only, got {', '.join(other)}", hint="see `xpk accelerator list`")
    arguments = ["--tpu-types", ",".join(shape.name for shape in space.shapes)]
    arguments += ["--num-slices", ",".join(map(str, space.num_slices)), "--max-chips", str(space.max_chips)]
    arguments += ["--rank-by", space.rank_by]
    if space.max_global_batch:
        arguments += ["--max-global-batch", str(space.max_global_batch)]
    arguments += [word for products in (INT8 if space.int8 else ()) for word in ("--products", products)]
    result = ask_trainer(runner, "search", [*arguments, *trainer_args])
    report_warnings(result, report)
    if result.exit_code:
        lines = [line for line in result.stderr.strip().splitlines() if not line.startswith(WARNING)]
        problems = [line.removeprefix("error: ") for line in lines] or [result.last_line]
        raise UsageError("cannot search this run", problems=problems, hint="`xpk plan capacity --help`")
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer["candidates"], answer["best"]
