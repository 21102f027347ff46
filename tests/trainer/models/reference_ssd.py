"""SSD's evaluation, loss and suppression in plain NumPy and float64, independent of the trainer's code.

Loops over images, default boxes and objects replace batches and masks.
"""

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.trainer.models.reference_resnet import layer, unit

Floats = npt.NDArray[np.float64]
SIDES = (21, 45, 99, 153, 207, 261, 315)  # of default boxes in pixels
STEPS = (8, 16, 32, 64, 100, 300)  # pixels from one cell to the next
RATIOS = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))


def default_boxes(grids: tuple[int, ...], image: int = 300) -> Floats:
    """Return MLPerf's default boxes as (upper, left, lower, right)."""
    result = []
    for n, grid in enumerate(grids):
        side, next_side = SIDES[n] / image, SIDES[n + 1] / image
        sizes = [(side, side), (math.sqrt(side * next_side), math.sqrt(side * next_side))]
        for ratio in RATIOS[n]:
            width, height = side * math.sqrt(ratio), side / math.sqrt(ratio)
            sizes += [(width, height), (height, width)]
        for row, column in itertools.product(range(grid), repeat=2):
            for width, height in sizes:
                y, x = (row + 0.5) * STEPS[n] / image, (column + 0.5) * STEPS[n] / image
                w, h = min(width, 1), min(height, 1)
                result.append((y - h / 2, x - w / 2, y + h / 2, x + w / 2))
    return np.array(result)


def convolve(x: Floats, w: Any, edge: int, stride: int) -> Floats:
    """Return a convolution and its bias, with zeros at the edges."""
    kernel = np.asarray(w["kernel"], np.float64)
    size, padded = kernel.shape[0], np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    side = (padded.shape[1] - size) // stride + 1
    result = np.zeros((len(x), side, side, kernel.shape[3]))
    for i, j in itertools.product(range(size), repeat=2):
        result += (
            padded[:, i : i + stride * side : stride, j : j + stride * side : stride][:, :side, :side] @ kernel[i, j]
        )
    return np.asarray(result + w["bias"])


def block(x: Floats, w: Any, average: Any, stride: int) -> Floats:
    y = np.maximum(unit(x, w["spatial"], average["spatial"], stride), 0)
    y = unit(y, w["expand"], average["expand"])
    return np.maximum(y + (unit(x, w["shortcut"], average["shortcut"], stride) if "shortcut" in w else x), 0)


def predictions(params: Any, averages: Any, pixels: Floats, classes: int) -> tuple[Floats, Floats]:
    """Return (offsets [B, D, 4], logits [B, D, K]) of images [B, H, W, 3] with values from 0 to 255."""
    x = (pixels - np.array([123.7, 116.3, 103.5])) / np.array([58.4, 57.1, 57.4])
    x = np.maximum(unit(x, params["stem"], averages["stem"], 2), 0)
    side = -(-x.shape[1] // 2)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    x = np.max(
        [padded[:, i : i + 2 * side - 1 : 2, j : j + 2 * side - 1 : 2] for i in range(3) for j in range(3)], axis=0
    )
    for name in sorted(params["stages"]):
        w, average = params["stages"][name], averages["stages"][name]
        x = block(x, w["first"], average["first"], 2 if name == "stage2" else 1)
        for n in range(len(w["rest"]["spatial"]["gain"]) if "rest" in w else 0):
            x = block(x, layer(w["rest"], n), layer(average["rest"], n), 1)
    offsets, logits = [], []
    for n, name in enumerate(sorted(params["heads"])):
        if n:
            w = params["further"][f"layer{n}"]
            x = np.maximum(convolve(x, w["reduce"], 0, 1), 0)
            x = np.maximum(convolve(x, w["expand"], *((1, 2) if n <= 3 else (0, 1))), 0)
        offsets.append(convolve(x, params["heads"][name]["box"], 1, 1).reshape(len(x), -1, 4))
        logits.append(convolve(x, params["heads"][name]["category"], 1, 1).reshape(len(x), -1, classes + 1))
    return np.concatenate(offsets, 1), np.concatenate(logits, 1)


def overlap(one: Floats, other: Floats) -> float:
    height, width = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    shared = max(height, 0) * max(width, 0)
    return float(shared / (np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - shared))


def matched(objects: list[Floats], defaults: Floats) -> dict[int, int]:
    """Return default box -> object."""
    table = [[overlap(one, box) for box in defaults] for one in objects]
    result = {}
    for d in range(len(defaults)):
        best = max(range(len(objects)), key=lambda n: table[n][d], default=None)
        if best is not None and table[best][d] >= 0.5:
            result[d] = best
    for n in range(len(objects)):
        result[int(np.argmax(table[n]))] = n
    return result


def loss(objects: list[Floats], categories: list[int], defaults: Floats, offsets: Floats, logits: Floats) -> float:
    """Return the loss of one image."""
    matches = matched(objects, defaults)
    entropies = np.log(np.exp(logits).sum(1))
    total = 0.0
    for d, n in matches.items():
        sizes, own = defaults[d][2:] - defaults[d][:2], objects[n][2:] - objects[n][:2]
        move = (objects[n][2:] + objects[n][:2] - defaults[d][2:] - defaults[d][:2]) / 2 / sizes / 0.1
        error = np.abs(offsets[d] - np.concatenate([move, np.log(own / sizes) / 0.2]))
        total += float(np.where(error < 1, error**2 / 2, error - 0.5).sum())
        total += float(entropies[d] - logits[d, categories[n]])
    negatives = sorted((entropies[d] - logits[d, 0] for d in range(len(defaults)) if d not in matches), reverse=True)
    return (total + float(sum(negatives[: 3 * len(matches)]))) / max(1, len(matches))
