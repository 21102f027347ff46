"""Former names of settings, accepted for one release."""

from collections.abc import Iterable, Mapping
from typing import Any

RENAMED = {  # former name -> name
    "checkpoint.keep": "checkpoint.max_to_keep",
    "mesh.reduction": "mesh.grad_reduction",
    "mesh.reduction_dtype": "mesh.grad_reduction_dtype",
    "model.masked": "model.mask_rate",
    "observe.pace_every": "observe.straggler_check_every",
    "optim.accumulate": "optim.grad_accum_steps",
    "optim.clip": "optim.grad_clip_norm",
    "optim.trust": "optim.trust_coefficient",
    "quant.dots": "quant.matmuls",
}
FORMER_SYNTHETIC, SYNTHETIC = "drawn", "synthetic"  # values of data.path: the trainer's own images
RENAMED_VALUES = {("data.path", FORMER_SYNTHETIC): SYNTHETIC}


def current_settings(settings: Iterable[tuple[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings under their current names, the last value of each, and a warning for each former name."""
    current: dict[str, Any] = {}
    warnings: dict[str, None] = {}  # ordered, without duplicates
    for former, value in settings:
        key = RENAMED.get(former, former)
        if key != former:
            warnings[f"setting {former!r} is deprecated; use {key!r}"] = None
        if isinstance(value, str) and (key, value) in RENAMED_VALUES:
            warnings[f"{key}={value} is deprecated; use {key}={RENAMED_VALUES[key, value]}"] = None
            value = RENAMED_VALUES[key, value]
        current[key] = value
    return current, list(warnings)


def current_section(section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a section in a checkpoint's notes, under their current names."""
    return {RENAMED.get(f"{section}.{key}", f"{section}.{key}").split(".")[1]: value for key, value in settings.items()}
