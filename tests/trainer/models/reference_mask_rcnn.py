"""Mask R-CNN in plain NumPy and float64, written from the papers and independent of the trainer's code.

Boxes are (upper, left, lower, right) in pixels. Everything is of one image, with loops where the papers have words.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.trainer.models.reference_resnet import Floats, convolve, stages

RATIOS = (0.5, 1.0, 2.0)


def with_bias(x: Floats, w: Any) -> Floats:
    return np.asarray(convolve(x, w["kernel"], 1) + w["bias"])


def pyramid(params: Any, averages: Any, pixels: Floats) -> list[Floats]:
    """Return the levels [B, H, W, F] of images [B, H, W, 3] with values from 0 to 255."""
    outputs = stages(params["trunk"], averages, pixels)
    inner = [with_bias(x, params["pyramid"]["lateral"][f"stage{n + 1}"]) for n, x in enumerate(outputs)]
    for n in reversed(range(len(inner) - 1)):
        inner[n] = inner[n] + inner[n + 1].repeat(2, axis=1).repeat(2, axis=2)
    levels = [with_bias(x, params["pyramid"]["output"][f"stage{n + 1}"]) for n, x in enumerate(inner)]
    return [*levels, levels[-1][:, ::2, ::2]]


def anchors(cells: int, grids: Sequence[tuple[int, int]]) -> Floats:
    """Return the anchors of all levels with these rows and columns, in pixels."""
    boxes = []
    for level, (rows, columns) in enumerate(grids):
        stride = 4 * 2**level
        for row in range(rows):
            for column in range(columns):
                for ratio in RATIOS:
                    height, width = cells * stride * math.sqrt(ratio), cells * stride / math.sqrt(ratio)
                    y, x = (row + 0.5) * stride, (column + 0.5) * stride
                    boxes.append([y - height / 2, x - width / 2, y + height / 2, x + width / 2])
    return np.array(boxes)


def proposal_outputs(params: Any, levels: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Return (logits [A], offsets [A, 4]) of the only image."""
    logits, offsets = [], []
    for x in levels:
        y = np.maximum(with_bias(x, params["hidden"]), 0)
        logits.append(with_bias(y, params["score"]).reshape(-1))
        offsets.append(with_bias(y, params["offsets"]).reshape(-1, 4))
    return np.concatenate(logits), np.concatenate(offsets)


def overlap(one: Floats, other: Floats) -> float:
    height, width = (min(one[n + 2], other[n + 2]) - max(one[n], other[n]) for n in (0, 1))
    if height <= 0 or width <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return float(height * width / (sum(areas) - height * width))


def moved(anchor: Floats, offsets: Floats, scales: tuple[float, float] = (1.0, 1.0)) -> Floats:
    """Return the box of the offsets y, x, log height, log width from an anchor."""
    size = anchor[2:] - anchor[:2]
    middle = anchor[:2] + size / 2 + offsets[:2] * scales[0] * size
    size = size * np.exp(np.minimum(offsets[2:] * scales[1], math.log(1000 / 16)))
    return np.concatenate([middle - size / 2, middle + size / 2])


def offsets_to(box: Floats, anchor: Floats, scales: tuple[float, float] = (1.0, 1.0)) -> Floats:
    """Return the inverse of `moved`."""
    size, own = anchor[2:] - anchor[:2], box[2:] - box[:2]
    shift = (box[:2] + own / 2 - anchor[:2] - size / 2) / size
    return np.concatenate([shift / scales[0], np.log(own / size) / scales[1]])


def suppress(boxes: Floats, scores: Floats, limit: float) -> list[int]:
    """Return the positions of the boxes that do not overlap with a better one, best first."""
    kept: list[int] = []
    for n in np.argsort(-scores, kind="stable"):
        if scores[n] > -np.inf and all(overlap(boxes[n], boxes[other]) <= limit for other in kept):
            kept.append(int(n))
    return kept


def proposals(
    logits: Floats, offsets: Floats, anchor: Floats, counts: Sequence[int], edges: Floats, candidates: int, kept: int
) -> tuple[Floats, Floats]:
    """Return (boxes, logits) of the proposals, best first, inside these edges; `counts` are the anchors of a level."""
    boxes, scores, first = [], [], 0
    for count in counts:
        best = first + np.argsort(-logits[first : first + count], kind="stable")[:candidates]
        moved_boxes = np.clip([moved(anchor[n], offsets[n]) for n in best], 0, edges)
        sizes = (moved_boxes[:, 2:] - moved_boxes[:, :2]).min(1)
        chosen = suppress(moved_boxes, np.where(sizes > 0, logits[best], -np.inf), 0.7)
        boxes += [moved_boxes[n] for n in chosen]
        scores += [logits[best[n]] for n in chosen]
        first += count
    order = np.argsort(-np.array(scores), kind="stable")[:kept]
    return np.array(boxes)[order], np.array(scores)[order]


def interpolated(level: Floats, y: float, x: float) -> Floats:
    """Return the features at a point in cells of a level [H, W, F]; the middle of the first cell is at 0.5."""
    y, x = (min(max(at - 0.5, 0), size - 1) for at, size in ((y, level.shape[0]), (x, level.shape[1])))
    result = np.zeros(level.shape[2])
    for row in (math.floor(y), math.ceil(y)):
        for column in (math.floor(x), math.ceil(x)):
            weights = [
                1 - abs(at - cell) if math.floor(at) != math.ceil(at) else 0.5 for at, cell in ((y, row), (x, column))
            ]
            result += weights[0] * weights[1] * level[row, column]
    return result


def level_of(box: Floats, levels: int) -> int:
    """Return the level of a region: k = 4 + log2(size / 224) of the paper, whose level 2 has stride 4."""
    size = math.sqrt((box[2] - box[0]) * (box[3] - box[1]))
    return min(max(math.floor(2 + math.log2(max(size, 1e-9) / 224)), 0), levels - 1)


def pool(levels: Sequence[Floats], box: Floats, bins: int) -> Floats:
    """Return the features [bins, bins, F] of a region, the mean of 2 x 2 points of each bin."""
    number = level_of(box, len(levels))
    level, corner = levels[number], box / (4 * 2**number)
    step = (corner[2:] - corner[:2]) / bins
    result = np.zeros((bins, bins, level.shape[2]))
    for row in range(bins):
        for column in range(bins):
            for down in (0.25, 0.75):
                for across in (0.25, 0.75):
                    y, x = corner[0] + (row + down) * step[0], corner[1] + (column + across) * step[1]
                    result[row, column] += interpolated(level, y, x) / 4
    return result


def box_head(params: Any, pooled: Floats) -> tuple[Floats, Floats]:
    """Return (logits [K], offsets [K, 4]) of a region's features."""
    x = pooled.reshape(-1)
    for name in ("hidden1", "hidden2"):
        x = np.maximum(x @ params[name]["dense"] + params[name]["bias"], 0)
    logits, offsets = (x @ params[name]["dense"] + params[name]["bias"] for name in ("score", "offsets"))
    return logits, offsets.reshape(-1, 4)


def mask_head(params: Any, pooled: Floats, category: int, layers: int) -> Floats:
    """Return the logits of a mask, twice as large as a region's features; category 1 is the first."""
    x = pooled[None]
    for n in range(layers):
        x = np.maximum(with_bias(x, params[f"hidden{n + 1}"]), 0)
    side = 2 * pooled.shape[0]
    large = np.zeros((side, side, x.shape[-1]))
    for i in (0, 1):
        for j in (0, 1):
            large[i::2, j::2] = x[0] @ params["enlarge"]["kernel"][i, j] + params["enlarge"]["bias"]
    score = np.maximum(large, 0) @ params["score"]["kernel"][0, 0] + params["score"]["bias"]
    return np.asarray(score[:, :, category - 1])


def mask_target(box: Floats, own: Floats, bitmap: Any, side: int) -> Floats:
    """Return the part of an object's bitmap, which is of its own box, that is in a region."""
    result = np.zeros((side, side))
    for row in range(side):
        for column in range(side):
            at = box[:2] + (np.array([row, column]) + 0.5) / side * (box[2:] - box[:2])
            cell = np.floor((at - own[:2]) / (own[2:] - own[:2]) * bitmap.shape[0]).astype(int)
            if (cell >= 0).all() and (cell < bitmap.shape[0]).all():
                result[row, column] = bitmap[cell[0], cell[1]]
    return result


def smooth(difference: Floats, threshold: float) -> float:
    total = 0.0
    for distance in np.abs(difference).reshape(-1):
        total += distance**2 / (2 * threshold) if distance < threshold else distance - threshold / 2
    return total


def labels(anchor: Floats, objects: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (1 for a positive, 0 for a negative, -1 for neither; the object that overlaps most) of anchors."""
    table = np.array([[overlap(box, own) for own in objects] for box in anchor])
    label = np.full(len(anchor), -1)
    label[table.max(1) < 0.3] = 0
    for column in table.T:
        if column.max() > 0:
            label[column == column.max()] = 1
    label[table.max(1) >= 0.7] = 1
    return label, table.argmax(1)


def binary_entropy(logit: Floats, target: Any) -> Floats:
    chance = 1 / (1 + np.exp(-logit))
    return np.asarray(-(target * np.log(chance) + (1 - target) * np.log(1 - chance)))


def entropy(logits: Floats, category: int) -> float:
    shifted = np.exp(logits - logits.max())
    return float(-np.log(shifted[category] / shifted.sum()))
