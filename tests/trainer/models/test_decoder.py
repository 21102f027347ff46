"""Grouped heads and gated MLPs of the decoder, next to NumPy and on several meshes."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from tests.trainer.emulated import Trainer, on, same_gradients
from trainer import config
from trainer.config import Model
from trainer.models import decoder, mfu, registry
from trainer.parallel import layout
from trainer.parallel.partitioning import Execution

Floats = npt.NDArray[np.float64]
VARIANTS = {
    "grouped": ("model.heads=4", "model.head_dim=8", "model.kv_heads=2"),
    "gated": ("model.activation=swiglu",),
    "both": ("model.heads=4", "model.head_dim=8", "model.kv_heads=2", "model.activation=swiglu"),
}


def norm(x: Floats, gain: Floats) -> Floats:
    normed: Floats = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gain
    return normed


def turn(x: Floats) -> Floats:
    """Rotate the halves of one head [T, Q] by its positions."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(half) / half)
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def attended(model: Model, y: Floats, w: dict[str, Floats]) -> Floats:
    """Return attention's output [T, E] of one example, head by head."""
    group, past = model.heads // model.key_heads, np.tril(np.ones((len(y), len(y)), bool))
    total = np.zeros_like(y)
    for head in range(model.heads):
        pair, member = divmod(head, group)
        q, k, v = (y @ w["qkv"][:, nth, pair] for nth in (member, group, group + 1))
        score = np.where(past, turn(q) @ turn(k).T / math.sqrt(model.head_dim), -np.inf)
        weight = np.exp(score - score.max(-1, keepdims=True))
        total += weight / weight.sum(-1, keepdims=True) @ v @ w["out"][head]
    return total


def mlp(model: Model, y: Floats, w: dict[str, Floats]) -> Floats:
    if model.activation == "swiglu":
        gate, value = y @ w["gate_up"][:, 0], y @ w["gate_up"][:, 1]
        gated: Floats = (gate / (1 + np.exp(-gate)) * value) @ w["down"]
        return gated
    x = y @ w["up"]
    bent: Floats = (x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))) @ w["down"]
    return bent


def reference_logits(model: Model, params: Any, tokens: npt.NDArray[np.int32]) -> Floats:
    """Return the logits [T, V] of one example in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = params["embed"][tokens] * math.sqrt(model.embed)
    for nth in range(model.layers):
        w = {name: leaf[nth] for name, leaf in params["layers"].items()}
        x = x + attended(model, norm(x, w["attention_norm"]), w)
        x = x + mlp(model, norm(x, w["mlp_norm"]), w)
    logits: Floats = norm(x, params["final_norm"]) @ params["embed"].T
    return logits


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_logits_are_those_of_numpy(settings: tuple[str, ...]) -> None:
    model = config.load("tiny", ["model.seq_len=16", *settings]).model
    params = decoder.init(model, jax.random.key(3))
    tokens = np.random.default_rng(0).integers(0, model.vocab, (2, 16)).astype(np.int32)
    logits = decoder.logits(model, Execution(on(1, 1, 1).mesh), params, jnp.asarray(tokens))
    for nth, example in enumerate(tokens):
        np.testing.assert_allclose(logits[nth], reference_logits(model, params, example), rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("dp", "fsdp", "tp"), [(2, 1, 2), (1, 2, 2)])
def test_gradients_are_the_same_on_every_mesh(dp: int, fsdp: int, tp: int) -> None:
    same_gradients(Trainer(dp, fsdp, tp, *VARIANTS["both"]), Trainer(1, 1, 1, *VARIANTS["both"]))


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_parameters_are_counted(settings: tuple[str, ...]) -> None:
    model = config.load("16b", settings).model
    assert mfu.parameters(model) == registry.parameters(model)


def test_as_many_keys_as_queries_are_the_same_model() -> None:
    model = config.load("tiny").model
    assert decoder.shapes(dataclasses.replace(model, kv_heads=model.heads)) == decoder.shapes(model)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("model.kv_heads=3", "model.heads = 4 is not divisible by model.kv_heads = 3"),
        ("model.kv_heads=1", "model.kv_heads = 1 is not divisible by mesh.tp = 2"),
        ("model.activation=relu", "model.activation = 'relu' is invalid"),
        ("model.family=bert,model.kv_heads=2", "model.kv_heads and model.activation are not supported by bert"),
    ],
)
def test_invalid_settings_are_reported(settings: str, problem: str) -> None:
    chosen = config.load("tiny", [*settings.split(","), "mesh.tp=2"])
    assert problem in [found.message for found in layout.check(chosen, layout.Chips(1, 1, 4))]
