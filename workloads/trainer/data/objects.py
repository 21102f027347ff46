"""Format of an image with objects: as a document of a prepared data set, and as the record of a step. Without JAX.

A document is the encoded image, its annotations as JSON and the length of these in LENGTH_BYTES. A record is bytes: the
pixels, then numbers of four bytes (int32 or float32), then the bitmaps; all little-endian. Boxes are (upper, left,
lower, right) as fractions of the record's rectangle. Dimensions: N = max_boxes, M = mask.
"""

import dataclasses
import json
from typing import Any

from trainer.config import DETECTION_FAMILIES, Model
from trainer.errors import Problem

LENGTH_BYTES = 4
_WORD = 4  # bytes of a number
_HEADER = 3  # numbers: of boxes, and the height and width of the picture as fractions of the rectangle
STRETCHED_FAMILIES = ("ssd",)  # models whose images are stretched; of others, they are padded


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectFormat:
    """Sizes of a record."""

    height: int  # of the rectangle in pixels
    width: int
    max_boxes: int
    mask: int  # height and width of a bitmap; 0: none
    is_stretched: bool  # else a picture of other proportions is padded, at its lower or right side
    short_side: int = 0  # of a padded picture: pixels of its shorter side, unless it would not fit; 0: no limit
    long_side: int = 0  # of a padded picture: most pixels of its longer side; 0: no limit

    @property
    def header(self) -> int:
        """First byte of the header."""
        return 3 * self.height * self.width

    @property
    def boxes(self) -> int:
        """First byte of the boxes [N, 4], float32."""
        return self.header + _WORD * _HEADER

    @property
    def categories(self) -> int:
        """First byte of the categories [N], int32: 1 for the first; 0 in padding."""
        return self.boxes + _WORD * 4 * self.max_boxes

    @property
    def crowds(self) -> int:
        """First byte of the flags [N], int32: 1 for a crowd of objects, which training ignores."""
        return self.categories + _WORD * self.max_boxes

    @property
    def masks(self) -> int:
        """First byte of the bitmaps [N, M, M], each of the region of its box: 1 inside the object, else 0."""
        return self.crowds + _WORD * self.max_boxes

    @property
    def length(self) -> int:
        """Bytes of a record."""
        return self.masks + self.max_boxes * self.mask * self.mask

    def extent(self, width: int, height: int) -> tuple[float, float]:
        """Return the width and height of the rectangle in pixels of a picture in it, stretched or padded."""
        if self.is_stretched:
            return width, height
        limits = [(width, self.width), (height, self.height)]
        limits += [(min(width, height), self.short_side), (max(width, height), self.long_side)]
        size, pixels = max((limit for limit in limits if limit[1]), key=lambda limit: limit[0] / limit[1])
        return self.width * size / pixels, self.height * size / pixels


@dataclasses.dataclass(frozen=True, slots=True)
class Annotated:
    """The annotations of an image; those of objects have the keys bbox, category, iscrowd, area, id, segmentation.

    As in COCO, except that `category` is the position among the sorted category ids, from 1.
    """

    id: int
    width: int
    height: int
    objects: list[dict[str, Any]]


def object_format(model: Model) -> ObjectFormat:
    """Return the format of a model's records."""
    is_stretched, limits = model.family in STRETCHED_FAMILIES, (model.short_side, model.long_side)
    return ObjectFormat(*model.image_sides, model.max_boxes, model.mask, is_stretched, *limits)


def pack(content: bytes, annotated: Annotated) -> bytes:
    """Return the document of an encoded image."""
    fields = {name: getattr(annotated, name) for name in Annotated.__dataclass_fields__}
    text = json.dumps(fields, separators=(",", ":")).encode()
    return content + text + len(text).to_bytes(LENGTH_BYTES, "little")


def unpack(document: bytes) -> tuple[bytes, Annotated]:
    """Return the encoded image of a document and its annotations. Raises ValueError if it is not one."""
    size = int.from_bytes(document[-LENGTH_BYTES:], "little")
    start = len(document) - LENGTH_BYTES - size
    if start < 0:
        raise ValueError("its annotations are missing")
    try:
        return document[:start], Annotated(**json.loads(document[start : len(document) - LENGTH_BYTES]))
    except TypeError as error:
        raise ValueError("its annotations have other fields") from error


def category_problem(name: str, categories: int, classes: int) -> list[Problem]:
    """Return the problem of data with more categories than the model has classes."""
    if categories <= classes:
        return []
    message = f"{name} has {categories} categories, but model.classes is {classes}"
    return [Problem(message, f"Use --set model.classes={categories} or more")]


def detects(model: Model) -> bool:
    """Return whether a model detects objects."""
    return model.family in DETECTION_FAMILIES
