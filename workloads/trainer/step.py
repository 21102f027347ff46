"""The jitted programs: the only place that knows both the mathematics and the shardings.

State is {"step": int32, "params": ..., "opt": ...}. A batch comes as blocks, one a chip (see data.py).
"""

# mypy: disallow-untyped-calls=False

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax import Array
from jax.sharding import Mesh, NamedSharding

from trainer import model, optim
from trainer.config import Config
from trainer.data import Blocks, Slots
from trainer.mesh import ALL, BATCH, sharding

State = dict[str, Any]
FLAGS = 2  # lanes of a host's flags: asked to stop, disk too full to save


@dataclasses.dataclass(frozen=True)
class Programs:
    """Jitted functions and what their arguments look like; lower and compile as needed."""

    init: Any  # uint32 seed -> state
    train: Any  # state, blocks, flags -> state, {"loss", "grad_norm", "learning_rate", "flags"}
    evaluate: Any  # params, blocks -> (sum of losses, sum of weights)
    state: State  # shapes, types and shardings
    blocks: Blocks
    flags: jax.ShapeDtypeStruct


def build(config: Config, mesh: Mesh, slots: Slots, global_batch: int) -> Programs:
    """Return the programs of `config` on `mesh`; compiles nothing."""
    optimizer = optim.optimizer(config.optim, config.run.steps)
    learning_rate = optim.schedule(config.optim, config.run.steps)

    def fresh(seed: Array) -> State:
        params = model.init(config.model, jax.random.key(seed))
        return {"step": jnp.zeros((), jnp.int32), "params": params, "opt": optimizer.init(params)}

    abstract = jax.eval_shape(fresh, jax.ShapeDtypeStruct((), jnp.uint32))
    placed = _state_shardings(mesh, abstract, optimizer)
    gather = _gatherer(mesh, slots, global_batch)

    def train(state: State, blocks: Blocks, flags: Array) -> tuple[State, dict[str, Array]]:
        tokens_BS, weight_B = gather(blocks)

        def mean_loss(params: model.Params) -> Array:
            total, weight = model.loss_sums(config.model, mesh, params, tokens_BS, weight_B)
            return total / jnp.maximum(weight, 1.0)

        loss, grads = jax.value_and_grad(mean_loss)(state["params"])
        grads = jax.lax.with_sharding_constraint(grads, placed["params"])
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        metrics = {
            "loss": loss,
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": jnp.asarray(learning_rate(state["step"]), jnp.float32),
            "flags": jnp.max(flags, axis=0),
        }
        return {"step": state["step"] + 1, "params": params, "opt": opt}, metrics

    def evaluate(params: model.Params, blocks: Blocks) -> tuple[Array, Array]:
        return model.loss_sums(config.model, mesh, params, *gather(blocks))

    everywhere, per_chip = sharding(mesh), sharding(mesh, ALL)
    state = jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), abstract, placed)
    rows = (slots.chips, slots.rows)
    return Programs(
        init=jax.jit(fresh, out_shardings=placed),
        train=jax.jit(train, donate_argnums=0, out_shardings=(placed, everywhere)),
        evaluate=jax.jit(evaluate, out_shardings=everywhere),
        state=state,
        blocks=Blocks(
            tokens=jax.ShapeDtypeStruct((*rows, config.model.seq_len + 1), jnp.int32, sharding=per_chip),
            weight=jax.ShapeDtypeStruct(rows, jnp.float32, sharding=per_chip),
        ),
        flags=jax.ShapeDtypeStruct((slots.chips, FLAGS), jnp.int32, sharding=per_chip),
    )


def _state_shardings(mesh: Mesh, abstract: State, optimizer: optax.GradientTransformation) -> State:
    """Spread the optimizer's moments like their parameters; counters go everywhere."""
    params = jax.tree.map(lambda spec: NamedSharding(mesh, spec), model.specs())
    opt = optax.tree.map_params(
        optimizer,
        lambda _, placed: placed,
        abstract["opt"],
        params,
        transform_non_params=lambda _: sharding(mesh),
    )
    return {"step": sharding(mesh), "params": params, "opt": opt}


def _gatherer(mesh: Mesh, slots: Slots, global_batch: int) -> Callable[[Blocks], tuple[Array, Array]]:
    """Return the function that turns the chips' blocks into the batch, spread over "dp" and "fsdp".

    Hosts that read nothing send blocks of zeros; only the readers' blocks are taken, in mesh order.
    """

    def rows(block_DR: Array) -> Array:
        if len(slots.readers) != slots.chips:
            block_DR = block_DR[np.array(slots.readers)]
        row_B: Array = block_DR.reshape(-1, *block_DR.shape[2:])[:global_batch]
        row_B = jax.lax.with_sharding_constraint(row_B, sharding(mesh, BATCH))
        return row_B

    return lambda blocks: (rows(blocks.tokens), rows(blocks.weight))
