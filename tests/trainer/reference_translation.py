"""The Transformer and GNMT in plain NumPy and float64: one sentence at a time, without padding, batches or masks.

Independent of trainer.models: it reads the same parameters and computes the logits of a translation.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Params = dict[str, Any]
Drop = Callable[[str, Floats], Floats]  # a place, such as "encoder 1 mlp", and the activations there
END = 1


def _keep(place: str, activations: Floats) -> Floats:
    return activations


def as_float64(tree: Any) -> Any:
    """Return parameters as float64 arrays."""
    if isinstance(tree, dict):
        return {name: as_float64(below) for name, below in tree.items()}
    return np.asarray(tree, np.float64)


def layer_norm(x: Floats, gain: Floats, bias: Floats) -> Floats:
    centered = x - x.mean(-1, keepdims=True)
    normed: Floats = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12) * gain + bias
    return normed


def softmax(x: Floats) -> Floats:
    exponential = np.exp(x - x.max(-1, keepdims=True))
    weights: Floats = exponential / exponential.sum(-1, keepdims=True)
    return weights


def attend(q: Floats, k: Floats, v: Floats, drop: Callable[[Floats], Floats], *, causal: bool) -> Floats:
    """Return attention of queries [T, Q] to keys [S, Q], head by head in the middle axis."""
    weights = []
    for head in range(q.shape[1]):
        score = q[:, head] @ k[:, head].T / np.sqrt(q.shape[2])
        if causal:
            score = np.where(np.tril(np.ones_like(score)) > 0, score, -np.inf)
        weights.append(softmax(score))
    return np.stack([weight @ v[:, head] for head, weight in enumerate(drop(np.stack(weights)))], 1)


def transformer_logits(params: Params, source: list[int], inputs: list[int], drop: Drop = _keep) -> Floats:
    """Return the Transformer's logits [T, V] after each number of `inputs`."""
    params = as_float64(params)
    table = params["embed"]
    embed = table.shape[1]

    def embedded(numbers: list[int]) -> Floats:
        frequency = 10_000.0 ** -(np.arange(embed // 2) / (embed // 2 - 1))
        angle = np.arange(len(numbers))[:, None] * frequency
        sines: Floats = np.concatenate([np.sin(angle), np.cos(angle)], 1)
        return np.asarray(table[numbers] * np.sqrt(embed) + sines)

    def block(x: Floats, w: Params, memory: Floats | None, name: str) -> Floats:
        def of(place: str) -> Callable[[Floats], Floats]:
            return lambda activations: drop(f"{name} {place}", activations)

        y = layer_norm(x, w["attention_gain"], w["attention_bias"])
        q, k, v = (np.einsum("te,ehf->thf", y, w["qkv"][:, n]) for n in range(3))
        y = attend(q, k, v, of("attention_weights"), causal=memory is not None)
        x = x + of("attention")(np.einsum("thf,hfe->te", y, w["out"]))
        if memory is not None:
            y = layer_norm(x, w["cross_gain"], w["cross_bias"])
            q = np.einsum("te,ehf->thf", y, w["query"])
            k, v = (np.einsum("te,ehf->thf", memory, w["key_value"][:, n]) for n in range(2))
            y = attend(q, k, v, of("cross_weights"), causal=False)
            x = x + of("cross")(np.einsum("thf,hfe->te", y, w["cross_out"]))
        y = layer_norm(x, w["mlp_gain"], w["mlp_bias"])
        y = of("hidden")(np.maximum(y @ w["up"] + w["up_bias"], 0))
        return np.asarray(x + of("mlp")(y @ w["down"] + w["down_bias"]))

    def stack(x: Floats, part: str, memory: Floats | None) -> Floats:
        x = drop(f"{part} input", x)
        for n in range(len(params[part]["up"])):
            x = block(x, {name: value[n] for name, value in params[part].items()}, memory, f"{part} {n}")
        return layer_norm(x, params["final"][f"{part}_gain"], params["final"][f"{part}_bias"])

    memory = stack(embedded(source), "encoder", None)
    result: Floats = stack(embedded(inputs), "decoder", memory) @ table.T
    return result


def lstm(x: Floats, w: Params) -> Floats:
    """Return the outputs of a layer of LSTM [T, E]."""
    h = c = np.zeros(w["state"].shape[0])
    outputs = []
    for row in x:
        i, f, g, o = np.einsum("d,dge->ge", row, w["input"]) + np.einsum("d,dge->ge", h, w["state"]) + w["gates_bias"]
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        outputs.append(h)
    return np.stack(outputs)


def gnmt_logits(params: Params, source: list[int], inputs: list[int], drop: Drop = _keep) -> Floats:
    """Return GNMT's logits [T, V] after each number of `inputs`."""
    params = as_float64(params)
    encoder, decoder, attention = params["encoder"], params["decoder"], params["attention"]

    def later(stack: Params) -> list[Params]:
        return [{name: value[n] for name, value in stack.items()} for n in range(len(stack["input"]))]

    x = drop("encoder 0 input", params["embed"][source])
    x = np.concatenate([lstm(x, encoder["first"]), lstm(x[::-1], encoder["backwards"])[::-1]], 1)
    x = lstm(drop("encoder 1 input", x), encoder["second"])
    for n, w in enumerate(later(encoder["later"]) if "later" in encoder else [], 2):
        x = x + lstm(drop(f"encoder {n} input", x), w)
    y = lstm(drop("decoder 0 input", params["embed"][inputs]), decoder["first"])
    sums = np.tanh((y @ attention["query"])[:, None] + x @ attention["key"] + attention["sum_bias"])
    vector = attention["score_gain"] * attention["vector"] / np.linalg.norm(attention["vector"])
    context = softmax(sums @ vector) @ x
    for n, w in enumerate(later(decoder["later"]), 1):
        after = lstm(drop(f"decoder {n} input", np.concatenate([y, context], 1)), w)
        y = after + y if n > 1 else after
    result: Floats = y @ params["head"]["dense"] + params["head"]["vocab_bias"]
    return result


def loss(logits: Floats, targets: list[int], smoothing: float) -> float:
    """Return the sum of the cross entropies of targets whose weight the vocabulary shares by a fraction."""
    log = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    log = log - logits.max(-1, keepdims=True)
    picked = log[np.arange(len(targets)), targets]
    return float(-((1 - smoothing) * picked + smoothing * log.mean(-1)).sum())
