"""Optimizers and schedules: equal to a plain reference, with a norm for every layer and sums in float32."""

import dataclasses
import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer import reference_optim as reference
from trainer.config import Model, Optim
from trainer.models import decoder
from trainer.step import learning_rate, optimizers

_ALL = decoder.shapes(Model(embed=8, heads=2, head_dim=4, mlp=12, layers=3, vocab=10))
SHAPES = {"embed": _ALL["embed"], "layers": {name: _ALL["layers"][name] for name in ("qkv", "mlp_norm", "up")}}
QUICK = {"xla_backend_optimization_level": 0}
STEPS = 6
CASES = {
    "adamw": Optim(name="adamw", lr=0.01, warmup=2, schedule="cosine", grad_clip_norm=0.5),
    "lamb": Optim(name="lamb", lr=0.01, warmup=0, schedule="polynomial", eps=1e-6, b2=0.999, grad_clip_norm=0),
    "lars-unscaled": Optim(name="lars", lr=2.0, warmup=3, schedule="polynomial", power=2, trust_coefficient=0.01),
    "sgd": Optim(name="sgd", lr=0.05, warmup=2, schedule="cosine", grad_clip_norm=0.5, weight_decay=0.05),
    "lars-scaled": Optim(name="lars", lr=2.0, warmup=3, power=2, trust_coefficient=0.01, momentum_form="scaled"),
}


def random_tree(seed: int) -> Any:
    """Return weights (seed 0), whose layers differ widely in size, or the gradients of a step."""
    random = np.random.default_rng(seed)

    def leaf(shape: tuple[int, ...]) -> Any:
        sizes = [1.0, 10.0, 100.0] if seed == 0 and shape[0] == 3 else [1.0]
        return random.normal(size=shape) * np.reshape(sizes, (-1, *[1] * (len(shape) - 1)))

    return jax.tree.map(leaf, SHAPES, is_leaf=lambda x: isinstance(x, tuple))


def layers_of(tree: Any) -> dict[str, Any]:
    """Split a tree of stacked parameters into tensors of one layer each; q, k and v are three."""
    result = {"embed": tree["embed"]}
    for name, stack in tree["layers"].items():
        for n in range(3):
            if name == "qkv":
                result |= {f"{letter}/{n}": stack[n, :, c] for c, letter in enumerate("qkv")}
            else:
                result[f"{name}/{n}"] = stack[n]
    return result


def single(tree: Any) -> Any:
    """Round to float32."""
    return jax.tree.map(np.float32, tree)


def run(optimizer: optax.GradientTransformation) -> dict[str, Any]:
    """Return the weights after STEPS updates with random gradients, by layer."""

    @functools.partial(jax.jit, compiler_options=QUICK)
    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = single(random_tree(0))
    state = jax.jit(optimizer.init, compiler_options=QUICK)(params)
    for n in range(STEPS):
        params, state = step(params, state, single(random_tree(n + 1)))
    return layers_of(jax.device_get(params))


@functools.cache
def trained(config: Optim, layer_axes: Any = decoder.layer_axes) -> dict[str, Any]:
    """Return the final weights of a configured optimizer."""
    return run(optimizers.optimizer(config, STEPS, family(layer_axes)))


def family(layer_axes: Any) -> Any:
    """Return the decoder with another definition of a layer."""
    return SimpleNamespace(is_gain=decoder.is_gain, layer_axes=layer_axes)


def check_against_reference(config: Optim, layer_axes: Any = decoder.layer_axes) -> None:
    """Fail unless every layer's weights equal the reference."""
    first = layers_of(random_tree(0))
    tensors = [reference.Tensor(weight, "norm" in name) for name, weight in first.items()]
    for n in range(STEPS):
        reference.step(config, tensors, list(layers_of(random_tree(n + 1)).values()), n, STEPS)
    mine = trained(config, layer_axes)
    for name, tensor in zip(first, tensors, strict=True):
        np.testing.assert_allclose(mine[name], tensor.weight, rtol=2e-4, atol=1e-6, err_msg=name)
        assert np.abs(mine[name] - first[name]).max() > 0, f"{name} did not change"


@pytest.mark.parametrize("case", CASES)
def test_updates_equal_the_reference(case: str) -> None:
    check_against_reference(CASES[case])


def per_stack(path: tuple[Any, ...]) -> tuple[int, ...]:
    """The fault: one norm for all layers of a stack."""
    return ()


@pytest.mark.parametrize("case", ["lamb", "lars-unscaled", "lars-scaled"])
def test_a_norm_over_all_layers_is_detected(case: str) -> None:
    with pytest.raises(AssertionError, match="Mismatched elements"):
        check_against_reference(CASES[case], per_stack)


@pytest.mark.parametrize(
    ("config", "peer"),
    [
        (
            Optim(name="adamw", grad_clip_norm=0, lr=0.01, warmup=0, schedule="constant"),
            lambda mask: optax.adamw(0.01, 0.9, 0.95, weight_decay=0.1, mask=mask),
        ),
        (
            Optim(name="lars", grad_clip_norm=0, lr=0.5, warmup=0, schedule="constant", weight_decay=0),
            lambda mask: optax.lars(0.5, trust_ratio_mask=mask),
        ),
    ],
    ids=["adamw", "lars"],
)
def test_updates_equal_optax_where_it_has_them(config: Optim, peer: Callable[[Any], Any]) -> None:
    """Optax has no stacks: for LARS each parameter counts as one layer."""
    mask = jax.tree_util.tree_map_with_path(lambda path, _: not decoder.is_gain(path), random_tree(0))
    for mine, theirs in zip(trained(config, per_stack).values(), run(peer(mask)).values(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)


def test_a_layer_without_gradient_or_weight_stays_finite() -> None:
    for config in CASES.values():
        optimizer = optimizers.optimizer(config, STEPS, family(decoder.layer_axes))
        zeros = jax.tree.map(np.zeros_like, single(random_tree(0)))
        updates, _ = jax.jit(lambda x, o=optimizer: o.update(x, o.init(x), x), compiler_options=QUICK)(zeros)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(updates))


def test_norms_are_summed_in_float32() -> None:
    ones = jnp.ones((2, 256, 256), jnp.bfloat16)  # a bfloat16 sum of ones stops at 256
    norms = optimizers.layer_norms(ones, (0,))
    assert (norms.dtype, norms.ravel().tolist()) == (jnp.float32, [256.0, 256.0])


@pytest.mark.parametrize("case", ["lamb", "lars-unscaled"])
def test_a_moment_can_be_stored_in_half_the_bytes(case: str) -> None:
    config = dataclasses.replace(CASES[case], moment_dtype="bfloat16")
    params = single(random_tree(0))
    state = jax.eval_shape(optimizers.optimizer(config, STEPS, family(decoder.layer_axes)).init, params)
    halves = [leaf for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.bfloat16]
    assert sum(leaf.size for leaf in halves) == sum(leaf.size for leaf in jax.tree.leaves(params))
    for rounded, exact in zip(trained(config).values(), trained(CASES[case]).values(), strict=True):
        assert np.linalg.norm(rounded - exact) < 0.01 * np.linalg.norm(exact)


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(["cosine", "polynomial", "constant"]),
    steps=st.integers(1, 400),
    warmup=st.integers(0, 500),
    power=st.floats(0.5, 3),
)
def test_schedules_equal_the_reference(kind: str, steps: int, warmup: int, power: float) -> None:
    config = Optim(lr=0.3, warmup=warmup, schedule=kind, power=power, final_fraction=0.05)
    mine = learning_rate.schedule(config, steps)
    for step in {0, 1, min(warmup, steps - 1), steps // 2, steps - 1, steps}:
        assert math.isclose(float(mine(step)), reference.rate(config, step, steps), abs_tol=2e-6), step


def test_the_learning_rate_drops_at_given_steps() -> None:
    drops = Optim(lr=0.4, warmup=4, warmup_factor=0.25, schedule="piecewise", decay_steps="10,20", decay_factor=0.5)
    rates = [float(learning_rate.schedule(drops, 40)(step)) for step in (0, 2, 4, 9, 10, 19, 20, 39)]
    assert rates == pytest.approx([0.1, 0.25, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1])
