"""Specs of workloads with one shape."""

from __future__ import annotations

from typing import Any

from xpk.model.accelerators import find_shape
from xpk.model.specs import Target, WorkloadSpec

SHAPE = find_shape("v5litepod-8")
TARGET = Target(emulated=True, sets_slice_environment=True, output_root="/output")


def spec(**changes: Any) -> WorkloadSpec:
    given: dict[str, Any] = {"name": "w", "num_slices": 1, "command": ("true",), "target": TARGET, "image": "none"}
    return WorkloadSpec(shape=SHAPE, **(given | changes))
