"""BERT in plain NumPy and float64, written from the paper and independent of the trainer's code."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Drop = Callable[[str, Floats], Floats]  # a place, such as "1 mlp" in the second layer, and the activations there


def normalize(x: Floats, gain: Floats, bias: Floats) -> Floats:
    centered = x - x.mean(-1, keepdims=True)
    return np.asarray(centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12) * gain + bias)


def gelu(x: Floats) -> Floats:
    """The approximation of the reference implementation."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def softmax(x: Floats) -> Floats:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def encode(
    params: Any, tokens: Ints, segments: Ints, length: int, drop: Drop = lambda place, activations: activations
) -> Floats:
    """Return the output [length, E] for one example without its padding."""
    inputs, layers = params["inputs"], params["layers"]
    x = inputs["embed"][tokens[:length]] + inputs["position"][:length] + inputs["segment"][segments[:length]]
    x = drop("input", normalize(x.astype(np.float64), inputs["gain"], inputs["bias"]))
    for n in range(len(layers["up"])):
        w = {name: value[n].astype(np.float64) for name, value in layers.items()}
        weights, values = [], []
        for head in range(w["qkv"].shape[2]):
            q, k, v = (x @ w["qkv"][:, part, head] + w["qkv_bias"][part, head] for part in range(3))
            weights.append(softmax(q @ k.T / math.sqrt(q.shape[-1])))
            values.append(v @ w["out"][head])
        weights_HTT = drop(f"{n} attention_weights", np.stack(weights))
        attended = sum(weight @ value for weight, value in zip(weights_HTT, values, strict=True)) + w["out_bias"]
        x = normalize(x + drop(f"{n} attention", attended), w["attention_gain"], w["attention_bias"])
        hidden = gelu(x @ w["up"] + w["up_bias"])
        x = normalize(x + drop(f"{n} mlp", hidden @ w["down"] + w["down_bias"]), w["mlp_gain"], w["mlp_bias"])
    return x


def token_logits(params: Any, x: Floats) -> Floats:
    """Return the logits of every position's token."""
    head = params["head"]
    hidden = normalize(gelu(x @ head["dense"] + head["dense_bias"]), head["gain"], head["bias"])
    return np.asarray(hidden @ params["inputs"]["embed"].T + head["vocab_bias"])


def next_logits(params: Any, x: Floats) -> Floats:
    """Return the logits of the second segment being another's, and following."""
    head = params["head"]
    return np.asarray(np.tanh(x[0] @ head["pool"] + head["pool_bias"]) @ head["next"] + head["next_bias"])


def cross_entropy(logits: Floats, target: int) -> float:
    return -float(np.log(softmax(logits)[target]))
