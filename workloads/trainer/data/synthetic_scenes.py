"""Synthetic scenes: colored rectangles, ellipses and triangles on a noisy background, with known boxes and masks.

A data set (`data.path=synthetic`) for trying a network without photographs. It shows that the code learns, but not how
well a network detects objects in photographs. Each scene is a function of the seed and its number alone.
"""

import io
import math
from typing import Any

import numpy as np

from trainer.config import Model
from trainer.data.dataset import Corpus
from trainer.data.image_decoding import require_pillow
from trainer.data.object_decoding import overlaps
from trainer.data.objects import Annotated, pack
from trainer.data.prepare import FILE_TOKENS, Writer, find_corpus
from trainer.data.prepare_objects import write_objects
from trainer.former_names import SYNTHETIC
from xpk_shared.storage import Place

CATEGORIES = ("rectangle", "ellipse", "triangle")
_SCENES = 2048  # number of scenes without data.max_bytes
_OBJECTS = range(1, 5)  # numbers of objects in a scene
_SIDE = (0.2, 0.5)  # of an object, as a fraction of the image's
_ASPECT = (1.0, 1.25)  # sides of an image, in model.image
_NOISE = 16.0  # standard deviation of every color
_MAX_OVERLAP = 0.1  # of two boxes
_ATTEMPTS = 20  # to place an object
_CORNERS = 32  # of an ellipse's polygon


def prepare(model: Model, out: Place, max_bytes: int = 0) -> Corpus:
    """Return the data set of scenes in the folder `out`; draw it if it is missing. Raises FatalError without Pillow."""
    count = max_bytes // (3 * model.image * model.image) or _SCENES
    request = {"source": SYNTHETIC, "image": model.image, "scenes": count}
    if (corpus := find_corpus(out, request, None)) is not None:
        return corpus
    require_pillow()

    def write(writer: Writer) -> dict[str, Any]:
        for number in range(count):
            writer.add(pack(*draw(number, model.image)))
        return {"skipped": 0}

    return write_objects(out, {"asked": request, "fingerprint": ""}, CATEGORIES, FILE_TOKENS, write)


def draw(number: int, size: int, seed: int = 0) -> tuple[bytes, Annotated]:
    """Return a scene as PNG file, its sides `size` to 1.25 x `size` pixels, and its annotations."""
    random, pillow = np.random.default_rng((seed, number)), require_pillow()
    from PIL import ImageDraw

    width, height = (int(side) for side in np.round(size * random.uniform(*_ASPECT, 2)))
    background = random.uniform(0, 255, 3)
    image = pillow.new("RGB", (width, height), tuple(map(int, background)))
    pen, objects = ImageDraw.Draw(image), list[dict[str, Any]]()
    for _ in range(random.integers(_OBJECTS.start, _OBJECTS.stop)):
        shape = _place(random, width, height, objects)
        if shape is None:
            continue
        category, polygon = shape
        color = random.uniform(0, 255, 3)
        while abs(background - color).max() < 96:
            color = random.uniform(0, 255, 3)
        pen.polygon([(x - 0.5, y - 0.5) for x, y in polygon], fill=tuple(map(int, color)))
        objects.append(_annotation(100 * number + len(objects) + 1, category, polygon))
    pixels_HWC = np.asarray(image) + random.normal(0, _NOISE, (height, width, 3))
    content = io.BytesIO()
    pillow.fromarray(np.clip(pixels_HWC, 0, 255).astype(np.uint8)).save(content, "PNG")
    return content.getvalue(), Annotated(number + 1, width, height, objects)


def _place(
    random: np.random.Generator, width: int, height: int, objects: list[dict[str, Any]]
) -> tuple[int, Any] | None:
    """Return (category, corners [P, 2]) of an object that overlaps the others little, None if none was found."""
    others_N4 = np.array([one["bbox"] for one in objects]).reshape(-1, 4)
    others_N4[:, 2:] += others_N4[:, :2]
    for _ in range(_ATTEMPTS):
        category = int(random.integers(len(CATEGORIES))) + 1
        sides = random.uniform(*_SIDE, 2) * (width, height)
        corner = random.uniform((0, 0), np.array([width, height]) - sides)
        if (overlaps(others_N4, np.concatenate([corner, corner + sides])) <= _MAX_OVERLAP).all():
            return category, corner + _outline(CATEGORIES[category - 1]) * sides
    return None


def _outline(name: str) -> Any:
    """Return the corners [P, 2] of an object in a square of side 1, which it touches on all sides."""
    if name == "rectangle":
        return np.array([(0, 0), (1, 0), (1, 1), (0, 1)], np.float64)
    if name == "triangle":
        return np.array([(0.5, 0), (1, 1), (0, 1)], np.float64)
    angle_P = np.arange(_CORNERS) * (2 * math.pi / _CORNERS)
    return np.stack([0.5 + np.cos(angle_P) / 2, 0.5 + np.sin(angle_P) / 2], 1)


def _annotation(number: int, category: int, polygon_P2: Any) -> dict[str, Any]:
    x_P, y_P = polygon_P2.T
    area = abs(float(np.dot(x_P, np.roll(y_P, -1)) - np.dot(y_P, np.roll(x_P, -1)))) / 2
    corner, sides = polygon_P2.min(0), np.ptp(polygon_P2, 0)
    return {
        "id": number,
        "bbox": [*map(float, corner), *map(float, sides)],
        "category": category,
        "iscrowd": 0,
        "area": area,
        "segmentation": [polygon_P2.reshape(-1).tolist()],
    }
