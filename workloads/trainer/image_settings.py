"""Settings that models of images do not support."""

from collections.abc import Iterator

from trainer.config import DETECTION_FAMILIES, Config, Model
from trainer.errors import Problem
from trainer.ssd_levels import SMALLEST_IMAGE

_MIN_BITMAP = 14  # least side of an object's bitmap for Mask R-CNN: half of a predicted mask's


def problems(config: Config) -> Iterator[Problem]:
    """Yield the settings that a model of images does not support."""
    model, family = config.model, config.model.family
    if not model.block_counts:
        yield Problem(
            f"model.blocks = {model.blocks!r} is not a list of positive integers", "Use a list such as 3,4,6,3"
        )
    if model.space_to_depth and model.image % 2:
        message = f"model.space_to_depth requires an even model.image, got {model.image}"
        yield Problem(message, f"Use --set model.image={model.image + 1}, or omit model.space_to_depth")
    if model.packed:
        yield Problem(f"model.packed = true requires text, but {family} trains on images", "Omit model.packed")
    if config.mesh.stages > 1:
        message = f"mesh.stages = {config.mesh.stages} is not supported by {family}, which has no pipeline"
        yield Problem(message, "Omit mesh.stages")
    if config.quant.products:
        message = f"quant.matmuls = {config.quant.matmuls} is not supported by {family}, which has only convolutions"
        yield Problem(message, "Omit quant.matmuls")
    if config.data.color_jitter and family not in DETECTION_FAMILIES:
        yield Problem(f"data.color_jitter is not supported by {family}, which detects no objects", "Omit it")
    if model.block == "basic" and family != "resnet":
        blocks = "whose blocks are basic" if family == "ssd" else "whose pyramid is on bottlenecks"
        yield Problem(f"model.block = basic is not supported by {family}, {blocks}", "Omit model.block")
    if family != "mask_rcnn" and (model.image_width or model.short_side or model.long_side):
        message = f"model.image_width, short_side and long_side are not supported by {family}, whose images are squares"
        yield Problem(message, "Omit them, and use model.image")
    if family != "mask_rcnn" and model.frozen_stages:
        yield Problem(f"model.frozen_stages is not supported by {family}, only by mask_rcnn", "Omit it")
    if family in DETECTION_FAMILIES:
        yield from _detection_problems(config)


def _detection_problems(config: Config) -> Iterator[Problem]:
    model = config.model
    if model.family == "mask_rcnn":
        yield from _region_problems(model)
    if model.family == "ssd" and len(model.block_counts) == 1:
        message = f"model.blocks = {model.blocks!r} has 1 stage, but ssd requires at least 2"
        yield Problem(message, "Use a list such as 3,4,6")
    if model.family == "ssd" and model.image < SMALLEST_IMAGE:
        message = (
            f"model.image = {model.image} is smaller than the default boxes of ssd, which have fixed sizes in pixels"
        )
        yield Problem(message, f"Use {SMALLEST_IMAGE} or more")
    if config.data.expansion < 1:
        message = f"data.expansion = {config.data.expansion} is below 1"
        yield Problem(message, "Use 1 for none, or more, such as 4")
    for name, is_set in (("run.target_accuracy", config.run.target_accuracy), ("observe.mllog", config.observe.mllog)):
        if is_set and not model.detections:
            yield Problem(f"{name} requires detections, but model.detections is 0", "Omit one of them")


def _region_problems(model: Model) -> Iterator[Problem]:
    stages = len(model.block_counts)
    size = 4 * 2 ** max(0, stages - 1)
    for name, side in (("image", model.image), ("image_width", model.image_width)):
        if stages and side % size:
            message = f"model.{name} = {side} is not divisible by {size}, the pixels of a cell of the last stage"
            below = side // size * size
            yield Problem(message, f"Nearest valid values: {f'{below} or {below + size}' if below else size}")
    limits, shorter, longer = (model.short_side, model.long_side), min(model.image_sides), max(model.image_sides)
    if model.short_side > shorter or model.long_side > longer or (all(limits) and limits[0] > limits[1]):
        height, width = model.image_sides
        message = (
            f"model.short_side = {limits[0]} and model.long_side = {limits[1]} do not fit images of {height} x {width}"
        )
        yield Problem(f"{message} pixels", "Use lower ones, or a larger model.image and model.image_width")
    if model.frozen_stages > stages:
        message = f"model.frozen_stages = {model.frozen_stages} is above {stages}, the number of stages"
        yield Problem(message, "Use --set model.frozen_stages=1 for the stem and the first stage")
    if model.frozen_stages > 0 and not model.frozen_norm:
        message = "model.frozen_stages requires model.frozen_norm: batch norm of frozen stages must not change"
        yield Problem(message, "Add --set model.frozen_norm=true")
    if model.mask < _MIN_BITMAP:
        message = f"model.mask = {model.mask} is too small: mask_rcnn learns masks from bitmaps of objects"
        yield Problem(message, "Use --set model.mask=28 or more, and data that was prepared with it")
    if model.anchor_samples < 2:
        message = f"model.anchor_samples = {model.anchor_samples} leaves no positive anchor: half of them are"
        yield Problem(message, "Use 2 or more")
