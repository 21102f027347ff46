"""AdamW, LAMB, LARS and SGD in plain numpy and float64, on a list of tensors that are one layer each."""

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.config import Optim

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass
class Tensor:
    """A weight and its optimizer state."""

    weight: Floats
    plain: bool  # a gain or bias: neither decayed nor scaled by norms
    first: Floats | float = 0.0
    second: Floats | float = 0.0


def rate(config: Optim, step: int, steps: int) -> float:
    """Return the learning rate of `step`, from 0."""
    warmup = min(config.warmup, steps - 1)
    if step < warmup:
        return config.lr * step / warmup
    done = min(1.0, (step - warmup) / (steps - warmup))
    left: float = {
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "polynomial": (1 - done) ** config.power,
        "constant": 1.0,
    }[config.schedule]
    end = config.final_fraction if config.schedule != "constant" else 0.0
    return config.lr * (end + (1 - end) * left)


def step(config: Optim, tensors: list[Tensor], grads: list[Floats], at: int, steps: int) -> None:
    """Change the weights in place."""
    norm = math.sqrt(sum(float((g * g).sum()) for g in grads))
    scale = config.grad_clip_norm / norm if config.grad_clip_norm and norm > config.grad_clip_norm else 1.0
    for tensor, g in zip(tensors, grads, strict=True):
        one = {"adamw": _adam, "lamb": _adam, "lars": _lars, "sgd": _sgd}[config.name]
        one(config, tensor, g * scale, rate(config, at, steps), at)


def _adam(config: Optim, t: Tensor, g: Floats, r: float, at: int) -> None:
    t.first = config.b1 * t.first + (1 - config.b1) * g
    t.second = config.b2 * t.second + (1 - config.b2) * g * g
    mean, square = t.first / (1 - config.b1 ** (at + 1)), t.second / (1 - config.b2 ** (at + 1))
    u = mean / (np.sqrt(square) + config.eps)
    if not t.plain:
        u = u + config.weight_decay * t.weight
        if config.name == "lamb":
            u = u * np.linalg.norm(t.weight) / np.linalg.norm(u)
    t.weight = t.weight - r * u


def _sgd(config: Optim, t: Tensor, g: Floats, r: float, at: int) -> None:
    t.first = config.momentum * t.first + g + (0.0 if t.plain else config.weight_decay) * t.weight
    t.weight = t.weight - r * t.first


def _lars(config: Optim, t: Tensor, g: Floats, r: float, at: int) -> None:
    local: Any = 1.0
    if not t.plain:
        w_norm = np.linalg.norm(t.weight)
        local = config.trust_coefficient * w_norm / (np.linalg.norm(g) + config.weight_decay * w_norm)
        g = g + config.weight_decay * t.weight
    if config.momentum_form == "scaled":
        t.first = config.momentum * t.first + g
        t.weight = t.weight - r * local * t.first
    else:
        t.first = config.momentum * t.first + r * local * g
        t.weight = t.weight - t.first
