"""Optimizers: AdamW, LAMB, LARS, and SGD with momentum.

A "layer" below is the unit that has a norm of its own: one tensor of one layer of the model. Parameters of all layers
are stacked in one array, so norms are taken over all axes but those that `Family.layer_axes` names. Gains and biases
are neither decayed nor scaled by a norm, as in MLPerf's reference implementations. All arithmetic is in float32.
"""

# mypy: disallow-untyped-calls=False

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jax import Array

from trainer.config import Optim
from trainer.models.family import Family, Path
from trainer.step import learning_rate


class LarsState(NamedTuple):
    """Number of finished updates, and the momentum of every parameter."""

    count: Any  # int32
    momentum: Any


def optimizer(config: Optim, steps: int, family: Family) -> optax.GradientTransformation:
    """Return the whole chain: clipping by the global norm, then the configured optimizer."""
    clip = optax.clip_by_global_norm(config.grad_clip_norm) if config.grad_clip_norm else optax.identity()
    if config.name == "lars":
        return optax.chain(clip, lars(config, steps, family))

    def is_decayed(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: not family.is_gain(path), params)

    decay = optax.add_decayed_weights(config.weight_decay, is_decayed)
    if config.name == "sgd":
        parts = [decay, optax.trace(config.momentum, accumulator_dtype=config.moment_dtype)]
    else:
        parts = [adam(config), decay]
    if config.name == "lamb":
        parts.append(by_layer_norms(family))
    return optax.chain(clip, optax.chain(*parts, optax.scale_by_learning_rate(learning_rate.schedule(config, steps))))


def without_frozen(
    inner: optax.GradientTransformation, is_frozen: Callable[[Path], bool]
) -> optax.GradientTransformation:
    """Return an optimizer that does not change the parameters at frozen paths, not even by weight decay."""

    def kept(path: Path, update: Array) -> Array:
        return jnp.zeros_like(update) if is_frozen(path) else update

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = inner.update(grads, state, params)
        return jax.tree_util.tree_map_with_path(kept, updates), state

    return optax.GradientTransformation(inner.init, update)


def adam(config: Optim) -> optax.GradientTransformation:
    """Return Adam's scaling with its first moment stored as `moment_dtype`, but computed in float32."""
    inner = optax.scale_by_adam(config.b1, config.b2, config.eps, mu_dtype=config.moment_dtype)

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        float32_state = state._replace(mu=optax.tree.cast(state.mu, jnp.float32))
        result: tuple[Any, Any] = inner.update(grads, float32_state, params)
        return result

    return optax.GradientTransformation(inner.init, update)


def layer_norms(x: Array, axes: tuple[int, ...]) -> Array:
    """Return the Euclidean norms of the layers in `x`, one for each index along `axes`; broadcasts against `x`."""
    others = tuple(axis for axis in range(x.ndim) if axis not in axes)
    return jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float32)), axis=others, keepdims=True))


def by_layer_norms(family: Family) -> optax.GradientTransformation:
    """Scale each layer's update u to the norm of its weights w: u ||w|| / ||u||, or u if one of them is 0.

    The last step of LAMB (You et al., Large Batch Optimization for Deep Learning, 2020, algorithm 2).
    """

    def leaf(path: tuple[Any, ...], update: Array, weight: Array) -> Array:
        if family.is_gain(path):
            return update
        axes = family.layer_axes(path)
        return update * _quotient(layer_norms(weight, axes), layer_norms(update, axes))

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(leaf, updates, params))


def lars(config: Optim, steps: int, family: Family) -> optax.GradientTransformation:
    """Return LARS, with weights w, gradients g, weight decay b, momentum m, trust coefficient t, learning rate r.

    Both forms have, for each layer, s = r t ||w|| / (||g|| + b ||w||), or r if a norm is 0. Then
        unscaled    v <- m v + s (g + b w),   w <- w - v      (You et al., Large Batch Training, 2017)
        scaled      v <- m v + (g + b w),     w <- w - s v    (MLPerf's reference for ResNet-50)
    In the scaled form a change of the learning rate also affects the gradients accumulated before it; Kumar et al.,
    Scale MLPerf-0.6 models on Google TPU-v3 Pods, 2019, compare the two.
    """
    rate_at = learning_rate.schedule(config, steps)
    momentum_decay, decay = config.momentum, config.weight_decay

    def init(params: Any) -> LarsState:
        momentum = jax.tree.map(lambda x: jnp.zeros_like(x, dtype=config.moment_dtype), params)
        return LarsState(jnp.zeros((), jnp.int32), momentum)

    def update(grads: Any, state: LarsState, params: Any) -> tuple[Any, LarsState]:
        rate = jnp.asarray(rate_at(state.count), jnp.float32)

        def leaf(path: tuple[Any, ...], g: Array, v: Array, w: Array) -> tuple[Array, Array]:
            scale, v = rate, v.astype(jnp.float32)
            if not family.is_gain(path):
                axes = family.layer_axes(path)
                w_norm, g_norm = layer_norms(w, axes), layer_norms(g, axes)
                any_g = jnp.where(g_norm > 0, g_norm + decay * w_norm, 0.0)
                scale, g = rate * _quotient(config.trust_coefficient * w_norm, any_g), g + decay * w
            if config.momentum_form == "scaled":
                v = momentum_decay * v + g
                return -scale * v, v
            v = momentum_decay * v + scale * g
            return -v, v

        pairs = jax.tree_util.tree_map_with_path(leaf, grads, state.momentum, params)
        updates, momentum = jax.tree.transpose(jax.tree.structure(grads), jax.tree.structure((0, 0)), pairs)
        return updates, LarsState(state.count + 1, optax.tree.cast(momentum, config.moment_dtype))

    return optax.GradientTransformation(init, update)


def _quotient(numerator: Array, denominator: Array) -> Array:
    """Return numerator / denominator, or 1 if one of them is 0."""
    return jnp.where((numerator > 0) & (denominator > 0), numerator / jnp.where(denominator > 0, denominator, 1.0), 1.0)
