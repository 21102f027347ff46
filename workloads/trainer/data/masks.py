"""Masks of objects in COCO's forms, polygons and run lengths, and their bitmaps.

Run lengths alternate between pixels outside and inside, column by column. Compressed, they are characters of five bits
and a sign, as differences from the run length before the previous one (pycocotools, maskApi.c).
"""

from collections.abc import Sequence
from typing import Any

_SAMPLES = 4  # in each direction of a bitmap's pixel, at least half of which are inside if the pixel is
_OFFSET, _BITS, _MORE, _SIGN = 48, 5, 0x20, 0x10
Region = tuple[float, float, float, float]  # left, upper, right and lower edge in pixels


def run_lengths(counts: str | Sequence[int]) -> list[int]:
    """Return the run lengths of a segmentation, compressed or not. Raises ValueError for an invalid one."""
    lengths = _decompressed(counts) if isinstance(counts, str) else list(counts)
    if not all(type(length) is int and length >= 0 for length in lengths):
        raise ValueError("are not numbers from 0")
    return lengths


def _decompressed(text: str) -> list[int]:
    lengths, position = list[int](), 0
    while position < len(text):
        value, shift, more = 0, 0, True
        while more:
            if position == len(text):
                raise ValueError("are cut off")
            bits = ord(text[position]) - _OFFSET
            if not 0 <= bits < 2 * _MORE:
                raise ValueError(f"have the character {text[position]!r}")
            value |= (bits & (_MORE - 1)) << shift
            position, shift, more = position + 1, shift + _BITS, bool(bits & _MORE)
            if not more and bits & _SIGN:
                value |= -1 << shift
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
    return lengths


def bitmap(segmentation: Any, region: Region, size: int) -> Any:
    """Return the uint8 bitmap [size, size] of a region of an image: 1 inside the object.

    Without a segmentation, the whole region is inside. A region of no area has a bitmap of zeros.
    """
    import numpy as np

    left, upper, right, lower = region
    if right <= left or lower <= upper:
        return np.zeros((size, size), np.uint8)
    if not segmentation:
        return np.ones((size, size), np.uint8)
    samples = size * _SAMPLES
    sample = _sample_polygons if isinstance(segmentation, list) else _sample_runs
    sample_YX = sample(segmentation, region, samples)
    share_MM = sample_YX.reshape(size, _SAMPLES, size, _SAMPLES).mean((1, 3))
    return (share_MM >= 0.5).astype(np.uint8)


def _sample_polygons(polygons: list[list[float]], region: Region, samples: int) -> Any:
    import numpy as np
    from PIL import Image, ImageDraw

    left, upper, right, lower = region
    image = Image.new("L", (samples, samples))
    draw, x, y = ImageDraw.Draw(image), samples / (right - left), samples / (lower - upper)
    for polygon in polygons:  # Pillow's coordinates are those of the centers of pixels
        points = zip(polygon[::2], polygon[1::2], strict=True)
        draw.polygon([((px - left) * x - 0.5, (py - upper) * y - 0.5) for px, py in points], fill=1)
    return np.asarray(image)


def _sample_runs(runs: dict[str, Any], region: Region, samples: int) -> Any:
    import numpy as np

    left, upper, right, lower = region
    height, width = runs["size"]
    lengths = run_lengths(runs["counts"])
    pixel_HW = np.repeat(np.arange(len(lengths)) % 2, lengths).reshape(width, height).T
    center_S = (np.arange(samples) + 0.5) / samples
    row_S = np.clip((upper + center_S * (lower - upper)).astype(int), 0, height - 1)
    column_S = np.clip((left + center_S * (right - left)).astype(int), 0, width - 1)
    return pixel_HW[row_S[:, None], column_S[None]]
