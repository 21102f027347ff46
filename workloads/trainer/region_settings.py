"""Settings of Mask R-CNN that do not fit each other. Does not need JAX."""

from collections.abc import Iterator

from trainer.config import Model
from trainer.errors import Problem

MIN_BITMAP = 14  # least side of an object's bitmap: half of a predicted mask's


def problems(model: Model) -> Iterator[Problem]:
    """Yield the settings that Mask R-CNN does not support."""
    stages = len(model.block_counts)
    size = 4 * 2 ** max(0, stages - 1)
    if stages and model.image % size:
        message = f"model.image = {model.image} is not divisible by {size}, the pixels of a cell of the last stage"
        below = model.image // size * size
        yield Problem(message, f"Nearest valid values: {f'{below} or {below + size}' if below else size}")
    if model.mask < MIN_BITMAP:
        message = f"model.mask = {model.mask} is too small: mask_rcnn learns masks from bitmaps of objects"
        yield Problem(message, "Use --set model.mask=28 or more, and data that was prepared with it")
    if model.anchor_samples < 2:
        message = f"model.anchor_samples = {model.anchor_samples} leaves no positive anchor: half of them are"
        yield Problem(message, "Use 2 or more")
