"""Decoding of photographs on the hosts: JPEG (or PNG) to pixels, cropped, resized and flipped.

The crops and flips of training are a function of the seed, the step and the number of the image alone: every mesh,
number of hosts and restart trains on the same pixels. Evaluation takes the center of each image. Both have the numbers
of MLPerf's reference for ResNet-50. Dimensions: H = W = size, C = 3.
"""

import io
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.data.records import LABEL_BYTES
from trainer.errors import FatalError, Problem, reason

_FORMATS = ("JPEG", "PNG")  # one file of ImageNet is a PNG with the suffix of a JPEG
_END = b"\xff\xd9"  # the last marker of a JPEG file
_AREA = (0.1, 1.0)  # of a crop, as a fraction of the image's
_RATIO = (3 / 4, 4 / 3)  # width over height of a crop
_ATTEMPTS = 100  # to find a crop inside the image, which is otherwise used whole
_CENTER = 224 / 256  # side of the center that is evaluated, as a fraction of the image's shorter side
_DRAWS = 0xC209  # distinguishes these random numbers from others with the same seed
MAX_THREADS = 32
Box = tuple[float, float, float, float]  # left, upper, right and lower edge in pixels
Pixels = npt.NDArray[np.uint8]


def require_pillow() -> Any:
    """Return Pillow's module Image. Raises FatalError if it is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        problem = Problem("photographs require Pillow, which is not installed", "pip install 'xpk-multislice[images]'")
        raise FatalError(problem) from error
    return Image


def find_defect(content: bytes) -> str:
    """Return why a file is not a complete image, or an empty string.

    Decodes only files that do not end like a complete JPEG; damage inside others is found when they are trained on.
    """
    try:
        with open_image(content) as image:
            if not content.rstrip(b"\0").endswith(_END):
                image.load()
    except decoding_errors() as error:
        return decoding_cause(error)
    return ""


def image_size(content: bytes) -> tuple[int, int]:
    """Return the width and height of an encoded image, which is not decoded."""
    with open_image(content) as image:
        width, height = image.size
    return int(width), int(height)


class Decoder:
    """Decoder of a data set's images, on several threads."""

    def __init__(self, size: int, seed: int) -> None:
        """Prepare to decode images of `size` x `size` pixels. Raises FatalError without Pillow."""
        require_pillow()
        self._size, self._seed = size, seed
        self._pool = ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "decode")

    def __call__(self, contents: Sequence[bytes], numbers: Sequence[int], step: int | None) -> list[Pixels | str]:
        """Return the pixels [H, W, C] of the images with these numbers, or why one cannot be decoded.

        `step` is the number of finished steps; None for an evaluation.
        """
        return list(self._pool.map(lambda content, number: self._decode(content, number, step), contents, numbers))

    def records(self, documents: Sequence[bytes], numbers: Sequence[int], step: int | None) -> list[Pixels | str]:
        """Return the same for images that are each followed by a label, as records [S]."""
        decoded = self([document[:-LABEL_BYTES] for document in documents], numbers, step)
        labels = (np.frombuffer(document[-LABEL_BYTES:], np.uint8) for document in documents)
        pairs = zip(decoded, labels, strict=True)
        return [one if isinstance(one, str) else np.concatenate([one.reshape(-1), label]) for one, label in pairs]

    def _decode(self, content: bytes, number: int, step: int | None) -> Pixels | str:
        try:
            if step is None:
                return decode(content, self._size, center)
            random = np.random.default_rng((_DRAWS, self._seed, step, number))
            is_flipped = bool(random.random() < 0.5)
            pixels_HWC = decode(content, self._size, lambda width, height: draw_crop(width, height, random))
            return pixels_HWC[:, ::-1] if is_flipped else pixels_HWC
        except decoding_errors() as error:
            return decoding_cause(error)


def decode(content: bytes, size: int, choose: Callable[[int, int], Box]) -> Pixels:
    """Return a part of an image, chosen by its width and height and resized to [H, W, C] (bilinear, antialiased).

    A JPEG that is much larger is decoded at a half, a quarter or an eighth of its size, which takes less time. Raises
    OSError or an error of Pillow if it is damaged.
    """
    with open_image(content) as image:
        width, height = image.size
        left, upper, right, lower = choose(width, height)
        scale = max(1.0, min(right - left, lower - upper) / size)
        image.draft("RGB", (math.ceil(width / scale), math.ceil(height / scale)))
        x, y = image.size[0] / width, image.size[1] / height
        box = left * x, upper * y, min(right * x, image.size[0]), min(lower * y, image.size[1])
        resized = image.convert("RGB").resize((size, size), require_pillow().Resampling.BILINEAR, box=box)
    return np.asarray(resized)


def draw_crop(width: int, height: int, random: np.random.Generator) -> Box:
    """Return a random part of an image, of any position, area and ratio within the limits above."""
    for _ in range(_ATTEMPTS):
        area = width * height * random.uniform(*_AREA)
        ratio = math.exp(random.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        x, y = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if x <= width and y <= height:
            left, upper = random.uniform(0, width - x), random.uniform(0, height - y)
            return left, upper, left + x, upper + y
    return 0, 0, width, height


def center(width: int, height: int) -> Box:
    """Return the center of an image: what remains if its shorter side is resized to 256 pixels and 224 are kept."""
    side = _CENTER * min(width, height)
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


def open_image(content: bytes) -> Any:
    """Return Pillow's image of an encoded one, not decoded yet."""
    return require_pillow().open(io.BytesIO(content), formats=_FORMATS)


def decoding_errors() -> tuple[type[Exception], ...]:
    """Return the errors of Pillow for a damaged image; some decoders raise SyntaxError."""
    image = require_pillow()
    return OSError, ValueError, SyntaxError, image.DecompressionBombError, image.DecompressionBombWarning


def decoding_cause(error: Exception) -> str:
    """Return an error of decoding as one short line."""
    if type(error).__name__ == "UnidentifiedImageError":
        return "it is not a JPEG or PNG image"
    return reason(error)
