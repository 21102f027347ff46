"""Matrix-product FLOPs of a program by operand dtype, counted in its jaxpr."""

# mypy: disallow-untyped-calls=False

import collections
import dataclasses
import functools
import math
import typing
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import Mesh

from trainer.config import Config
from trainer.data.records import record
from trainer.models.family import Context, Params
from trainer.models.registry import family
from trainer.parallel.mesh import ALL
from trainer.parallel.partitioning import Execution

Flops = dict[str, float]  # by dtype: {"int8": ..., "bfloat16": ..., "float32": ...}


def flops(jaxpr: Jaxpr) -> Flops:
    """Return the FLOPs of a program's matrix products: 2 per multiplication, times the iterations of loops.

    A loop without a fixed trip count counts once; of a branch, the larger side counts.
    """
    totals: collections.Counter[str] = collections.Counter()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (summed, _), _ = equation.params["dimension_numbers"]
            left, right = (typing.cast(ShapedArray, operand.aval) for operand in equation.invars)
            terms = math.prod(left.shape[axis] for axis in summed)
            dtype = left.dtype if left.dtype == right.dtype else jnp.promote_types(left.dtype, right.dtype)
            result = typing.cast(ShapedArray, equation.outvars[0].aval)
            totals[str(dtype)] += 2 * terms * math.prod(result.shape)
            continue
        inner_flops = [flops(inner) for inner in _inner(equation.params)]
        if equation.primitive.name == "cond":
            inner_flops = [max(inner_flops, key=lambda inner: sum(inner.values()))]
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in inner_flops:
            totals.update({dtype: times * count for dtype, count in inner.items()})
    return dict(totals)


def training_flops(config: Config) -> Flops:
    """Return the products of one example's forward and backward pass, without recomputation."""
    # Without a kernel of attention, whose products are not seen.
    model_config = dataclasses.replace(
        config.model, remat="none", fused_attention=False, attention_chunk=0, loss_chunk=0
    )
    one_chip = Mesh(np.array(jax.local_devices()[:1]).reshape(1, 1, 1, 1), ALL)
    execution, model = Execution(one_chip, quant=config.quant), family(config.model)

    def loss(params: Params, record_BS: jax.Array, weight_B: jax.Array) -> jax.Array:
        return model.sums(model_config, execution, params, Context({}, None, None), record_BS, weight_B).loss

    params = jax.eval_shape(functools.partial(model.init, model_config), jax.random.key(0))
    example = jax.ShapeDtypeStruct((1, record(model_config).length), record(model_config).dtype)
    traced = jax.make_jaxpr(jax.grad(loss))(params, example, jax.ShapeDtypeStruct((1,), jnp.float32))
    return flops(traced.jaxpr)


def int8_share(config: Config) -> float:
    """Return the fraction of a model's product FLOPs that are computed in int8: 0 to 1."""
    if not config.quant.products:
        return 0.0
    counted = training_flops(config)
    return counted.get("int8", 0.0) / sum(counted.values())


def _inner(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """Yield the jaxprs that are parameters of an equation."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item
