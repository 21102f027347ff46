"""COCO's mean average precision (mAP) of a model's detections, by pycocotools, over all held-out images on one host.

Every chip detects in its share of each batch; the detections of a batch are then whole on every chip (`Detections`),
and the host that leads collects those of all images without padding.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import io
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.config import Config, Model
from trainer.data.objects import Annotated, object_format
from trainer.data.records import Kind, record
from trainer.errors import FatalError, Problem
from trainer.models.family import Detections

BOXES, MASKS = "bbox", "segm"  # names of pycocotools
_INSIDE = 0.5  # probability from which a pixel belongs to an object


def check(config: Config) -> None:
    """Raise FatalError if the configured evaluations cannot measure detections: without pycocotools."""
    if record(config.model).kind is Kind.OBJECTS and config.model.detections:
        _pycocotools()


class DetectionLog:
    """Detections of the images of an evaluation, in the order of the images."""

    def __init__(self) -> None:
        self._images = list[Detections]()  # each of one image, without the first dimension

    def add(self, detections: Detections, weight_B: Any) -> None:
        """Add those of a batch on the host, except for images of weight 0, which are padding."""
        for n in np.flatnonzero(np.asarray(weight_B) > 0):
            self._images.append(Detections(*(None if part is None else np.asarray(part)[n] for part in detections)))

    def pack(self) -> bytes:
        """Return all detections as bytes, without the places that detect nothing."""
        images = [_real(image) for image in self._images]
        arrays: dict[str, Any] = {"counts": [len(image.category_BK) for image in images]}
        for name in Detections._fields:
            parts = [part for image in images if (part := getattr(image, name)) is not None]
            arrays |= {name: np.concatenate(parts)} if parts else {}
        content = io.BytesIO()
        np.savez(content, **arrays)
        return content.getvalue()

    @classmethod
    def unpack(cls, content: bytes) -> "DetectionLog":
        """Return the detections in bytes that `pack` returned."""
        arrays, log = np.load(io.BytesIO(content)), cls()
        ends = np.cumsum(arrays["counts"])
        for begin, end in zip(ends - arrays["counts"], ends, strict=True):
            parts = (arrays[name][begin:end] if name in arrays else None for name in Detections._fields)
            log._images.append(Detections(*parts))
        return log

    @classmethod
    def merge(cls, logs: Sequence["DetectionLog"], numbers: Sequence[Sequence[int]]) -> "DetectionLog":
        """Return the detections of several logs in the order of the images, of which each log has these numbers."""
        pairs = zip(logs, numbers, strict=True)
        images = [image for log, own in pairs for image in zip(own, log._images, strict=True)]
        merged = cls()
        merged._images = [image for _, image in sorted(images, key=lambda image: image[0])]
        return merged

    def precisions(self, model: Model, images: Sequence[Annotated]) -> dict[str, float]:
        """Return the mAP, 0 to 1, of boxes ("map") and of masks ("mask_map") if the detections have any.

        `images` are those of the evaluation, in the order of the detections. Without any object there is no mAP.
        """
        images = [dataclasses.replace(image, id=number) for number, image in enumerate(images, 1)]
        has_masks = bool(self._images) and self._images[0].mask_BKMM is not None
        kinds = {"map": BOXES, "mask_map": MASKS} if has_masks else {"map": BOXES}
        precisions = {}
        for name, kind in kinds.items():
            results = [
                one
                for image, detections in zip(images, self._images, strict=True)
                for one in image_results(model, image, detections, kind)
            ]
            precisions[name] = average_precision(images, results, kind)
        return {name: value for name, value in precisions.items() if not math.isnan(value)}


def image_results(model: Model, image: Annotated, detections: Detections, kind: str = BOXES) -> list[dict[str, Any]]:
    """Return an image's detections as COCO's results, in pixels of the picture."""
    width, height = object_format(model).extent(image.width, image.height)
    results = []
    for n in np.flatnonzero(np.asarray(detections.category_BK) > 0):
        edges = np.asarray(detections.box_BK4, np.float64)[n] * (height, width, height, width)
        upper, left, lower, right = np.clip(edges, 0, (image.height, image.width) * 2).tolist()
        result: dict[str, Any] = {"image_id": image.id, "category_id": int(detections.category_BK[n])}
        result |= {"score": float(detections.score_BK[n]), "bbox": [left, upper, right - left, lower - upper]}
        if kind == MASKS:
            assert detections.mask_BKMM is not None
            result["segmentation"] = _encoded(_paste(detections.mask_BKMM[n], edges, image.height, image.width))
        results.append(result)
    return results


def _real(image: Detections) -> Detections:
    """Return the detections of an image without the places that detect nothing."""
    is_real_K = np.asarray(image.category_BK) > 0
    return Detections(*(None if part is None else part[is_real_K] for part in image))


def average_precision(images: Sequence[Annotated], results: list[dict[str, Any]], kind: str = BOXES) -> float:
    """Return the mAP, 0 to 1, of COCO's results for these images; NaN without any object."""
    coco, evaluation = _pycocotools()
    objects = ((image, one) for image in images for one in image.objects)
    truth = coco()
    truth.dataset = {
        "images": [{"id": image.id, "width": image.width, "height": image.height} for image in images],
        "annotations": [_annotation(number, image, one, kind) for number, (image, one) in enumerate(objects, 1)],
    }
    truth.dataset["categories"] = [
        {"id": number} for number in sorted({one["category_id"] for one in truth.dataset["annotations"]})
    ]
    if not truth.dataset["annotations"]:
        return math.nan
    if not results:
        return 0.0
    truth.createIndex()
    measured = evaluation(truth, truth.loadRes(results), kind)
    measured.evaluate()
    measured.accumulate()
    measured.summarize()
    return float(measured.stats[0])


def _annotation(number: int, image: Annotated, one: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return an object as pycocotools reads it; it takes an object with the number 0 for none."""
    known = {"id": number, "image_id": image.id, "category_id": one["category"]}
    known |= {key: one[key] for key in ("bbox", "area", "iscrowd")}
    if kind != MASKS:
        return known
    x, y, width, height = one["bbox"]
    whole = [[x, y, x + width, y, x + width, y + height, x, y + height]]
    return known | {"segmentation": one["segmentation"] or whole}


def _paste(mask_MM: Any, edges: npt.NDArray[np.float64], height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return the bitmap [H, W] of a mask of probabilities in the region of its box, interpolated between its pixels."""
    mask_MM = np.pad(np.asarray(mask_MM, np.float32), 1)
    upper, left, lower, right = edges
    pixels_HW = np.zeros((height, width), np.uint8)
    first_y, last_y = max(0, int(upper)), min(height, int(np.ceil(lower)))
    first_x, last_x = max(0, int(left)), min(width, int(np.ceil(right)))
    if first_y >= last_y or first_x >= last_x:
        return pixels_HW

    def positions(first: int, last: int, begin: float, end: float, size: int) -> Any:
        position = (np.arange(first, last) + 0.5 - begin) / max(end - begin, 1e-6) * size + 0.5
        position = np.clip(position, 0, size + 1 - 1e-6)
        return position.astype(int), position - np.floor(position)

    y, share_y = positions(first_y, last_y, upper, lower, len(mask_MM) - 2)
    x, share_x = positions(first_x, last_x, left, right, len(mask_MM) - 2)
    y1, x1 = np.minimum(y + 1, len(mask_MM) - 1), np.minimum(x + 1, len(mask_MM) - 1)
    top = mask_MM[y[:, None], x] * (1 - share_x) + mask_MM[y[:, None], x1] * share_x
    bottom = mask_MM[y1[:, None], x] * (1 - share_x) + mask_MM[y1[:, None], x1] * share_x
    inside = top * (1 - share_y[:, None]) + bottom * share_y[:, None] >= _INSIDE
    pixels_HW[first_y:last_y, first_x:last_x] = inside
    return pixels_HW


def _encoded(pixels_HW: npt.NDArray[np.uint8]) -> Any:
    from pycocotools import mask

    return mask.encode(np.asfortranarray(pixels_HW))


def _pycocotools() -> Any:
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        message = "the evaluation of detections requires pycocotools, which is not installed"
        hint = "pip install 'xpk-multislice[detection]', or use --set model.detections=0 to evaluate only the loss"
        raise FatalError(Problem(message, hint)) from error
    for kind in (COCO, COCOeval):  # without redirecting the stdout that the steps' log lines go to meanwhile
        sys.modules[kind.__module__].__dict__["print"] = lambda *words, **options: None
    return COCO, COCOeval
