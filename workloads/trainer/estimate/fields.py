"""Fields that the estimates of all model families have."""

import dataclasses
from typing import Any, NamedTuple

from trainer.config import Config
from trainer.estimate.accelerators import Chip, Slice
from trainer.estimate.memory import Memory
from trainer.models.mfu import mfu
from trainer.parallel.layout import Layout

_GIB = 2**30


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of a step: items and FLOPs of all chips, bytes that one chip sends, and the seconds of its links."""

    items: int  # tokens, pairs, images or examples
    flops: float
    computed_flops: float  # with recomputation
    ici: float
    ici_seconds: float
    dcn: float
    int8_flops: float = 0.0  # of `flops`
    computed_int8_flops: float = 0.0  # of `computed_flops`


class Sent(NamedTuple):
    """Bytes that one chip sends in a step."""

    ici: float
    dcn: float

    def work(self, slice_: Slice, items: int, flops_per_item: float) -> Work:
        """Return the work of a step that recomputes nothing, and whose chips use all links of a slice."""
        ici_seconds = self.ici / (2 * slice_.chip.ici_bandwidth * slice_.chip.dimensions)
        flops = flops_per_item * items
        return Work(items=items, flops=flops, computed_flops=flops, ici=self.ici, ici_seconds=ici_seconds, dcn=self.dcn)


def size_fields(
    config: Config, slice_: Slice, num_slices: int, sizes: Layout, *, chips: int, parameters: int
) -> dict[str, Any]:
    """Return the fields of what is estimated; `chips` are those of all slices."""
    return {
        "config": config.name,
        "tpu_type": slice_.name,
        "num_slices": num_slices,
        "chips": chips,
        "mesh": {axis: getattr(sizes, axis) for axis in ("dp", "stages", "fsdp", "tp")},
        "parameters": parameters,
    }


def memory_fields(of_chip: Memory, chip: Chip) -> dict[str, Any]:
    """Return the fields of the memory of a chip, in GiB."""
    return {
        "hbm_gib": chip.hbm_gib,
        "fits": of_chip.peak <= chip.hbm_gib * _GIB,
        "peak_gib": round(of_chip.peak / _GIB, 3),
        "state_gib": round(of_chip.state / _GIB, 3),
        "activations_gib": round(of_chip.activations / _GIB, 3),
    }


def work_fields(work: Work, of_chip: Memory, chip: Chip, chips: int, *, is_hidden: bool) -> dict[str, Any]:
    """Return the fields of FLOPs, traffic and time.

    The bound of the time is that of the slowest of arithmetic and links, and of the update, for which a chip reads and
    writes its whole state. The expected time equals it if transfers are hidden behind arithmetic; else it is the sum.
    """
    int8 = work.computed_int8_flops
    seconds = {
        "compute": ((work.computed_flops - int8) / chip.peak_bf16 + int8 / chip.peak_int8) / chips,
        "ici": work.ici_seconds,
        "dcn": work.dcn / chip.dcn_bandwidth,
    }
    bound_by = max(seconds, key=lambda resource: seconds[resource])
    update = 2 * of_chip.state / chip.hbm_bandwidth
    bound = seconds[bound_by] + update
    expected = bound if is_hidden else sum(seconds.values()) + update
    share = work.int8_flops / work.flops

    def utilization(seconds: float, int8_share: float = 0.0) -> float | None:
        flops_per_item, rate = work.flops / work.items, work.items / seconds
        return mfu(flops_per_item, rate, chips, chip.peak_bf16, int8_share, chip.peak_int8)

    return {
        "flops_per_step": work.flops,
        "computed_flops_per_step": work.computed_flops,
        "dcn_gib_per_step": round(work.dcn / _GIB, 4),
        "ici_gib_per_step": round(work.ici / _GIB, 3),
        "step_seconds": significant(bound),
        "bound_by": bound_by,
        "tokens_per_second": round(work.items / bound),
        "mfu_bound": utilization(bound, share),
        "emfu_bound": utilization(bound),
        "expected_step_seconds": significant(expected),
        "expected_mfu": utilization(expected, share),
        "expected_emfu": utilization(expected),
    }


def significant(seconds: float) -> float:
    """Return a time in six digits: steps of small models take microseconds."""
    return float(f"{seconds:.6g}")
