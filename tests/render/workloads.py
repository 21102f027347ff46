"""Workloads whose objects are rendered, and their targets."""

from __future__ import annotations

from typing import Any

from xpk.model.accelerators import find_shape
from xpk.model.specs import Target, WorkloadSpec

EMULATED = Target(emulated=True, sets_slice_environment=True, output_root="/output", on_this_machine=True)
ON_KIND = Target(
    emulated=True,
    sets_slice_environment=True,
    output_root="/shared/output",
    shared_folder="/shared/output",
    fenced=True,
)
ON_GKE = Target(emulated=False, sets_slice_environment=False, output_root="gs://bucket/output")


def workload(**changes: Any) -> WorkloadSpec:
    given: dict[str, Any] = {
        "name": "demo",
        "shape": find_shape("v5litepod-8"),
        "num_slices": 2,
        "command": ("python", "-m", "trainer", "train", "--config", "tiny"),
        "target": EMULATED,
        "image": "xpk-trainer",
    }
    return WorkloadSpec(**(given | changes))
