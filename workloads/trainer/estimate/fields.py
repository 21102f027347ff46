"""Fields that the estimates of all model families have."""

from typing import Any

from trainer.config import Config
from trainer.estimate.accelerators import Chip, Slice
from trainer.estimate.memory import Memory
from trainer.parallel.layout import Layout

_GIB = 2**30


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


def significant(seconds: float) -> float:
    """Return a time in six digits: steps of small models take microseconds."""
    return float(f"{seconds:.6g}")
