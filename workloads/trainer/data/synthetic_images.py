"""Synthetic labeled images: figures of ten classes, at any position, size and color, on a noisy background.

A data set (`data.path=synthetic`) for trying a network without photographs. It shows that the code learns, but not how
well a network classifies photographs. Each image is a function of its number alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.config import Model
from trainer.data.dataset import Corpus
from trainer.data.prepare import FILE_TOKENS, Writer, find_corpus, write_corpus
from trainer.data.records import LABEL_BYTES
from trainer.data.tokenizer import BYTES
from trainer.former_names import FORMER_SYNTHETIC, SYNTHETIC
from xpk_shared.storage import Place

_IMAGES = 4096  # number of images without data.max_bytes
_NOISE = 16.0  # standard deviation of every color
Floats = npt.NDArray[np.float64]

# In a square from -1 to 1 around the figure's center.
FIGURES: dict[str, Callable[[Floats, Floats], Any]] = {
    "disc": lambda y, x: y * y + x * x < 1,
    "ring": lambda y, x: (y * y + x * x < 1) & (y * y + x * x > 0.4),
    "square": lambda y, x: _inside(y, x),
    "frame": lambda y, x: _inside(y, x) & (np.maximum(abs(y), abs(x)) > 0.6),
    "triangle": lambda y, x: _inside(y, x) & (abs(x) < (y + 1) / 2),
    "plus": lambda y, x: _inside(y, x) & (np.minimum(abs(y), abs(x)) < 0.3),
    "cross": lambda y, x: _inside(y, x) & (abs(abs(y) - abs(x)) < 0.3),
    "rows": lambda y, x: _inside(y, x) & (np.floor(y * 2.5 + 0.5) % 2 == 0),
    "columns": lambda y, x: _inside(y, x) & (np.floor(x * 2.5 + 0.5) % 2 == 0),
    "half": lambda y, x: (y * y + x * x < 1) & (y > 0),
}


def prepare(model: Model, out: Place, max_bytes: int = 0) -> Corpus:
    """Return the data set of images in the folder `out`; draw it if it is missing."""
    count = max_bytes // (3 * model.image * model.image + LABEL_BYTES) or _IMAGES
    request = {"source": SYNTHETIC, "image": model.image, "images": count}

    def write(writer: Writer) -> dict[str, Any]:
        for number in range(count):
            writer.add(draw(number, model.image))
        return {"skipped": 0}

    notes = {"dtype": "uint8", "vocab": 256, "tokenizer": BYTES, "asked": request, "fingerprint": ""}
    former_request = request | {"source": FORMER_SYNTHETIC}  # in manifests written before the rename
    return (
        find_corpus(out, request, None)
        or find_corpus(out, former_request, None)
        or write_corpus(out, notes, FILE_TOKENS, write)
    )


def draw(number: int, size: int) -> bytes:
    """Return the record of an image of `size` x `size` pixels: its bytes, row by row, and its label."""
    random = np.random.default_rng(number)
    label = int(random.integers(len(FIGURES)))
    background, foreground = random.uniform(0, 255, (2, 3))
    while abs(background - foreground).max() < 96:
        foreground = random.uniform(0, 255, 3)
    radius = random.uniform(0.22, 0.42) * size
    middle_y, middle_x = random.uniform(radius, size - radius, 2)
    y_HW, x_HW = (np.mgrid[:size, :size] + 0.5 - np.array([middle_y, middle_x])[:, None, None]) / radius
    figure_HW1 = list(FIGURES.values())[label](y_HW, x_HW)[..., None]
    pixels_HWC = np.where(figure_HW1, foreground, background) + random.normal(0, _NOISE, (size, size, 3))
    pixels = bytes(np.clip(pixels_HWC, 0, 255).astype(np.uint8).tobytes())
    return pixels + label.to_bytes(LABEL_BYTES, "little")


def _inside(y: Floats, x: Floats) -> Any:
    return np.maximum(abs(y), abs(x)) < 1
