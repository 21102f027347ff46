"""Decoding of images with objects on the hosts, to records (objects.py): crop, expansion, flip, boxes and bitmaps.

All random choices are a function of the seed, the step and the number of the image alone, as for photographs. Crops of
stretched images are those of SSD (Liu et al., 2016) with the numbers of MLPerf's reference; padded images are only
flipped. The colors of both may change (color_jitter.py). An evaluation sees whole images.

Dimensions: H, W = height and width, N = max_boxes, M = mask.
"""

import dataclasses
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.config import CROP_ATTEMPTS, Data
from trainer.data.color_jitter import ColorJitter, draw_jitter
from trainer.data.image_decoding import MAX_THREADS, decoding_cause, decoding_errors, open_image, require_pillow
from trainer.data.masks import bitmap
from trainer.data.objects import Annotated, ObjectFormat, unpack

_DRAWS = 0x55D  # distinguishes these random numbers from others with the same seed
_MIN_OVERLAPS = (None, 0.1, 0.3, 0.5, 0.7, 0.9, 0.0)  # of a crop with every box kept; None: no crop
_SIDE, _RATIO = (0.3, 1.0), (0.5, 2.0)  # of a crop: sides as fractions of the image's, and height over width
_CHOICES = 20  # of an overlap, after which the whole image is taken
_FILL = (124, 116, 104)  # color of what is outside the picture
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """The part of a picture that becomes the record's rectangle, in pixels of the picture."""

    left: float
    upper: float
    width: float
    height: float
    is_flipped: bool = False


class ObjectDecoder:
    """Decoder of a data set's images with objects, on several threads."""

    def __init__(self, form: ObjectFormat, settings: Data) -> None:
        """Prepare to decode; the settings have the seed and the augmentation. Raises FatalError without Pillow."""
        require_pillow()
        self._form, self._settings = form, settings
        self._pool = ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "decode")

    def records(
        self, documents: Sequence[bytes], numbers: Sequence[int], step: int | None
    ) -> list[npt.NDArray[np.uint8] | str]:
        """Return the records [S] of the images with these numbers, or why one cannot be decoded.

        `step` is the number of finished steps; None for an evaluation.
        """
        return list(self._pool.map(lambda document, number: self._decode(document, number, step), documents, numbers))

    def _decode(self, document: bytes, number: int, step: int | None) -> npt.NDArray[np.uint8] | str:
        try:
            (content, annotated), settings = unpack(document), self._settings
            view, jitter = whole_view(self._form, annotated), None
            if step is not None:
                random = np.random.default_rng((_DRAWS, settings.seed, step, number))
                view = draw_view(self._form, annotated, random, settings.expansion)
                jitter = draw_jitter(random) if settings.color_jitter else None
            return make_record(self._form, content, annotated, view, jitter)
        except decoding_errors() as error:
            return decoding_cause(error)


def whole_view(form: ObjectFormat, annotated: Annotated) -> View:
    """Return the view of a whole picture."""
    return View(0, 0, *form.extent(annotated.width, annotated.height))


def draw_view(form: ObjectFormat, annotated: Annotated, random: np.random.Generator, expansion: float = 1.0) -> View:
    """Return a random view of a picture to train on."""
    is_flipped, view = bool(random.random() < 0.5), whole_view(form, annotated)
    if form.is_stretched:
        if expansion > 1 and random.random() < 0.5:
            view = _expanded(view, random, expansion)
        view = _cropped(view, corners(annotated), random)
    return dataclasses.replace(view, is_flipped=is_flipped)


def corners(annotated: Annotated) -> Floats:
    """Return the boxes [N, 4] as left, upper, right and lower edge in pixels, clipped to the picture."""
    box_N4 = np.array([one["bbox"] for one in annotated.objects], np.float64).reshape(-1, 4)
    box_N4[:, 2:] += box_N4[:, :2]
    return np.clip(box_N4, 0, (annotated.width, annotated.height) * 2)


def make_record(
    form: ObjectFormat, content: bytes, annotated: Annotated, view: View, jitter: ColorJitter | None = None
) -> npt.NDArray[np.uint8]:
    """Return the record [S] of a view of an encoded image, whose colors `jitter` changes.

    Raises OSError or an error of Pillow if the image is damaged.

    Of boxes, those remain whose center is in the view, clipped to it, and of more than `max_boxes` the largest, crowds
    last.
    """
    box_N4 = corners(annotated)
    right, lower = view.left + view.width, view.upper + view.height
    center_N2 = (box_N4[:, :2] + box_N4[:, 2:]) / 2
    is_kept_N = ((center_N2 > (view.left, view.upper)) & (center_N2 < (right, lower))).all(1)
    box_N4 = np.clip(box_N4, (view.left, view.upper) * 2, (right, lower) * 2)
    area_N = (box_N4[:, 2:] - box_N4[:, :2]).prod(1)
    kept = np.flatnonzero(is_kept_N & (area_N > 0))
    if len(kept) > form.max_boxes:
        is_crowd = [annotated.objects[n]["iscrowd"] for n in kept]
        kept = np.sort(kept[np.lexsort((-area_N[kept], is_crowd))[: form.max_boxes]])
    picture = [
        min(1.0, (annotated.height - view.upper) / view.height),
        min(1.0, (annotated.width - view.left) / view.width),
    ]
    edge = 1.0 if form.is_stretched else picture[1]  # of what is flipped: padding stays at its side
    row_S = np.zeros(form.length, np.uint8)
    row_S[: form.header] = _pixels(content, (form.height, form.width), annotated, view, edge, jitter).reshape(-1)
    _write(row_S, form.header, np.array([len(kept)], "<i4"))
    _write(row_S, form.header + 4, np.array(picture, "<f4"))
    _write(row_S, form.boxes, _fractions(box_N4[kept], view, edge))
    _write(row_S, form.categories, np.array([annotated.objects[n]["category"] for n in kept], "<i4"))
    _write(row_S, form.crowds, np.array([annotated.objects[n]["iscrowd"] for n in kept], "<i4"))
    if form.mask:
        for nth, n in enumerate(kept):
            mask_MM = bitmap(annotated.objects[n]["segmentation"], tuple(box_N4[n]), form.mask)
            mask_MM = mask_MM[:, ::-1] if view.is_flipped else mask_MM
            _write(row_S, form.masks + nth * form.mask * form.mask, mask_MM)
    return row_S


def _write(row_S: npt.NDArray[np.uint8], start: int, values: npt.NDArray[Any]) -> None:
    content = np.frombuffer(values.tobytes(), np.uint8)
    row_S[start : start + len(content)] = content


def _fractions(box_N4: Floats, view: View, edge: float) -> npt.NDArray[np.float32]:
    """Return boxes as (upper, left, lower, right), fractions of the view, flipped in the part up to `edge`."""
    left, upper, right, lower = ((box_N4 - (view.left, view.upper) * 2) / ((view.width, view.height) * 2)).T
    if view.is_flipped:
        left, right = edge - right, edge - left
    return np.stack([upper, left, lower, right], 1).astype("<f4")


def _pixels(
    content: bytes, sides: tuple[int, int], annotated: Annotated, view: View, edge: float, jitter: ColorJitter | None
) -> npt.NDArray[np.uint8]:
    """Return the view of an encoded image, resized to [H, W, C]; what is outside the picture has one color."""
    pillow, (H, W) = require_pillow(), sides
    # The part of the picture in the view, in pixels of the picture and of the record.
    left, upper = max(0.0, view.left), max(0.0, view.upper)
    right, lower = min(annotated.width, view.left + view.width), min(annotated.height, view.upper + view.height)
    first_x, last_x = (round((x - view.left) * W / view.width) for x in (left, right))
    first_y, last_y = (round((y - view.upper) * H / view.height) for y in (upper, lower))
    pixels_HWC = np.empty((H, W, 3), np.uint8)
    pixels_HWC[:] = _FILL
    with open_image(content) as image:
        if image.size != (annotated.width, annotated.height):
            raise ValueError(
                f"it has {image.size[0]} x {image.size[1]} pixels, not {annotated.width} x {annotated.height}"
            )
        scale = max(1.0, min(view.width / W, view.height / H))
        image.draft("RGB", (int(np.ceil(annotated.width / scale)), int(np.ceil(annotated.height / scale))))
        x, y = image.size[0] / annotated.width, image.size[1] / annotated.height
        box = left * x, upper * y, min(right * x, image.size[0]), min(lower * y, image.size[1])
        size = max(1, last_x - first_x), max(1, last_y - first_y)
        resized = image.convert("RGB").resize(size, pillow.Resampling.BILINEAR, box=box)
    part_HWC = np.asarray(jitter.apply(resized) if jitter else resized)[: H - first_y, : W - first_x]
    if view.is_flipped:
        part_HWC, first_x = part_HWC[:, ::-1], max(0, round(edge * W) - first_x - part_HWC.shape[1])
    pixels_HWC[first_y : first_y + part_HWC.shape[0], first_x : first_x + part_HWC.shape[1]] = part_HWC
    return pixels_HWC


def _expanded(view: View, random: np.random.Generator, expansion: float) -> View:
    """Return a larger view around the picture, at a random position (Liu et al., "zoom out")."""
    ratio = random.uniform(1, expansion)
    width, height = view.width * ratio, view.height * ratio
    return View(-random.uniform(0, width - view.width), -random.uniform(0, height - view.height), width, height)


def _cropped(view: View, box_N4: Floats, random: np.random.Generator) -> View:
    """Return a part of a view whose overlap (IoU) with every box is at least a random number, or the view itself.

    A part must have the center of a box.
    """
    for _ in range(_CHOICES if len(box_N4) else 0):
        least = _MIN_OVERLAPS[random.integers(len(_MIN_OVERLAPS))]
        if least is None:
            return view
        for _ in range(CROP_ATTEMPTS):
            width, height = random.uniform(*_SIDE, 2) * (view.width, view.height)
            left = view.left + random.uniform(0, view.width - width)
            upper = view.upper + random.uniform(0, view.height - height)
            is_shaped = _RATIO[0] <= (height / view.height) / (width / view.width) <= _RATIO[1]
            crop = np.array([left, upper, left + width, upper + height])
            if is_shaped and (overlaps(box_N4, crop) >= least).all() and _has_center(box_N4, crop):
                return View(left, upper, width, height)
    return view


def overlaps(box_N4: Floats, other_4: Floats) -> Floats:
    """Return the intersection of each box with another one over their union."""
    sides_N2 = np.minimum(box_N4[:, 2:], other_4[2:]) - np.maximum(box_N4[:, :2], other_4[:2])
    shared_N = np.maximum(sides_N2, 0).prod(1)
    union_N = (box_N4[:, 2:] - box_N4[:, :2]).prod(1) + (other_4[2:] - other_4[:2]).prod() - shared_N
    overlap_N: Floats = shared_N / np.maximum(union_N, 1e-9)
    return overlap_N


def _has_center(box_N4: Floats, crop_4: Floats) -> bool:
    center_N2 = (box_N4[:, :2] + box_N4[:, 2:]) / 2
    return bool(((center_N2 > crop_4[:2]) & (center_N2 < crop_4[2:])).all(1).any())
