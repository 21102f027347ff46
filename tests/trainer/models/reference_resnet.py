"""ResNet in plain NumPy and float64, written from the papers and independent of the trainer's code."""

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def convolve(x: Floats, kernel: Floats, stride: int) -> Floats:
    """Return a convolution with zeros at the edges, one position of the kernel after the other."""
    size, edge = kernel.shape[0], (kernel.shape[0] - 1) // 2
    padded = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    height, width = (-(-side // stride) for side in x.shape[1:3])
    result = np.zeros((len(x), height, width, kernel.shape[3]))
    for i in range(size):
        for j in range(size):
            part = padded[:, i : i + stride * height : stride, j : j + stride * width : stride]
            result += part[:, :height, :width] @ kernel[i, j]
    return result


class BatchStatistics:
    """Replaces the averages of batch norm: each unit uses the mean and variance of its batch, which are recorded.

    `seen` has those of each unit by its path, averaged over groups of `examples` images, which are normalized together.
    """

    def __init__(self, examples: int, path: tuple[Any, ...] = (), seen: dict[Any, Any] | None = None) -> None:
        self.examples, self.path, self.seen = examples, path, {} if seen is None else seen

    def __getitem__(self, key: Any) -> "BatchStatistics":
        return BatchStatistics(self.examples, (*self.path, key), self.seen)

    def normalize(self, y: Floats) -> Floats:
        """Return the output of a convolution with a mean of 0 and a variance of 1 in each group."""
        groups = np.split(y, len(y) // self.examples)
        means, variances = ([f(group, axis=(0, 1, 2)) for group in groups] for f in (np.mean, np.var))
        self.seen[self.path] = np.mean(means, axis=0), np.mean(variances, axis=0)
        parts = [(g - m) / np.sqrt(v + 1e-5) for g, m, v in zip(groups, means, variances, strict=True)]
        return np.concatenate(parts)


def unit(x: Floats, w: Any, average: Any, stride: int = 1) -> Floats:
    y = convolve(x, w["kernel"], stride)
    if isinstance(average, BatchStatistics):
        return np.asarray(average.normalize(y) * w["gain"] + w["bias"])
    return np.asarray((y - average["mean"]) / np.sqrt(average["variance"] + 1e-5) * w["gain"] + w["bias"])


def block(x: Floats, w: Any, average: Any, stride: int) -> Floats:
    y = np.maximum(unit(x, w["reduce"], average["reduce"]), 0) if "reduce" in w else x
    y = np.maximum(unit(y, w["spatial"], average["spatial"], stride), 0)
    y = unit(y, w["expand"], average["expand"])
    shortcut = unit(x, w["shortcut"], average["shortcut"], stride) if "shortcut" in w else x
    return np.maximum(shortcut + y, 0)


def layer(tree: Any, n: int) -> Any:
    """Return layer `n` of stacked parameters or averages."""
    if isinstance(tree, BatchStatistics):
        return tree[n]
    return {name: layer(below, n) if isinstance(below, dict) else below[n] for name, below in tree.items()}


def stages(params: Any, averages: Any, pixels: Floats) -> list[Floats]:
    """Return the output of every stage for images [B, H, W, 3] with values from 0 to 255."""
    x = (pixels - np.array([123.7, 116.3, 103.5])) / np.array([58.4, 57.1, 57.4])
    x = np.maximum(unit(x, params["stem"], averages["stem"], 2), 0)
    height, width = x.shape[1] // 2, x.shape[2] // 2
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = [padded[:, i : i + 2 * height : 2, j : j + 2 * width : 2] for i in range(3) for j in range(3)]
    x, outputs = np.max(windows, axis=0), []
    for number, name in enumerate(sorted(params["stages"])):
        w, average = params["stages"][name], averages["stages"][name]
        x = block(x, w["first"], average["first"], 1 if number == 0 else 2)
        for n in range(len(w["rest"]["spatial"]["gain"]) if "rest" in w else 0):
            x = block(x, layer(w["rest"], n), layer(average["rest"], n), 1)
        outputs.append(x)
    return outputs


def logits(params: Any, averages: Any, pixels: Floats) -> Floats:
    """Return logits [B, K] of images [B, H, W, 3] with values from 0 to 255."""
    last = stages(params, averages, pixels)[-1]
    return np.asarray(last.mean((1, 2)) @ params["head"]["dense"] + params["head"]["bias"])


def entropy(logit: Floats, label: int, smoothing: float) -> float:
    """Return the cross entropy of one image whose classes share `smoothing` of the label's weight."""
    log = logit - logit.max() - np.log(np.exp(logit - logit.max()).sum())
    return float(-(1 - smoothing) * log[label] - smoothing * log.mean())
