"""The jitted programs: the only module that knows both the mathematics and the shardings.

State is {"step": int32, "params": ..., "opt": ...}. A batch comes as blocks, one per chip (see data/batches.py).
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax import Array
from jax.sharding import Mesh, NamedSharding

from trainer.config import Config
from trainer.data.batches import Blocks, Slots
from trainer.data.records import Record, record
from trainer.models.dropout import example_keys
from trainer.models.family import Context, Detections, Family, Params, Sums
from trainer.models.pairs import halves
from trainer.models.registry import family
from trainer.parallel.layout import Layout
from trainer.parallel.mesh import ALL, BATCH, platform, sharding
from trainer.parallel.partitioning import Execution
from trainer.step import learning_rate, optimizers
from trainer.step.accumulation import mean_gradients, sum_gradients
from trainer.step.area_under_curve import count_pairs
from trainer.step.gradient_reduction import Automatic, Explicit
from trainer.step.shares import Flattening, SharePrograms
from trainer.step.update_sharding import update_shardings

State = dict[str, Any]
FLAGS = 2  # lanes of a host's flags: disk too full to save, ms that its chips waited for data


class Translations(NamedTuple):
    """Translations of a batch and those of the data, as numbers of records [B, T], whole on every chip."""

    number_BT: Array
    reference_BT: Array
    weight_B: Array  # 0 for padding


@dataclasses.dataclass(frozen=True)
class Programs:
    """Jitted functions, and the abstract values of their arguments for lowering and compiling them."""

    init: Any  # uint32 seed -> state
    train: Any  # state, blocks, flags -> state, {"loss", "grad_norm", "learning_rate", "flags"}
    evaluate: Any  # params, blocks, averages -> Sums
    rank: Any  # predictions of every batch of an evaluation -> PairCounts
    state: State  # shapes, types and shardings
    blocks: Blocks
    flags: jax.ShapeDtypeStruct
    shares: SharePrograms  # the training step in two programs, for elastic slices
    translate: Any = None  # params, blocks -> Translations, for a model that translates
    detect: Any = None  # params, blocks, averages -> (Detections, weights [B]), for a model that detects objects


def build(config: Config, mesh: Mesh, slots: Slots, sizes: Layout, replicas: int = 1) -> Programs:
    """Return the programs of `config` on `mesh`, which has these sizes; compiles nothing.

    `replicas` is the number of virtual replicas of elastic slices; then `mesh` is that of one slice.
    """
    model = family(config.model)
    examples = sizes.global_batch / (sizes.dp * sizes.fsdp)
    config = dataclasses.replace(config, model=model.place(config.model, sizes.fsdp, examples))
    optimizer = optimizers.optimizer(config.optim, config.run.steps, model)
    optimizer = optimizers.without_frozen(optimizer, functools.partial(model.is_frozen, config.model))
    functions = _Functions(
        config, mesh, model, optimizer, _make_gather(mesh, slots, sizes.global_batch), sizes, replicas
    )
    abstract = jax.eval_shape(functions.init_state, jax.ShapeDtypeStruct((), jnp.uint32))
    shardings = _state_shardings(mesh, abstract, optimizer, model.specs(config.model), functions.update_specs)
    replicated = sharding(mesh)
    flattening = functions.flattening(abstract)
    jit = functools.partial(jax.jit, compiler_options=tpu_options(config, mesh))
    return Programs(
        init=jax.jit(functions.init_state, out_shardings=shardings),
        train=jit(functions.train, donate_argnums=0, out_shardings=(shardings, replicated)),
        evaluate=jit(functions.evaluate, out_shardings=_sums_shardings(mesh)),
        rank=jit(functools.partial(count_pairs, mesh), out_shardings=replicated),
        state=jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), abstract, shardings),
        blocks=_blocks(record(config.model), mesh, slots),
        flags=jax.ShapeDtypeStruct((slots.chips, FLAGS), jnp.int32, sharding=sharding(mesh, ALL)),
        shares=SharePrograms(
            share=jit(functools.partial(functions.share, flattening), out_shardings=(flattening.sharding, replicated)),
            update=jit(
                functools.partial(functions.update_from_sum, flattening),
                donate_argnums=0,
                out_shardings=(shardings, replicated),
            ),
            vectors=flattening.form,
        ),
        translate=(
            jit(functions.translate, out_shardings=replicated) if model.translate and config.model.beam else None
        ),
        detect=jit(functions.detect, out_shardings=replicated) if model.detect and config.model.detections else None,
    )


def tpu_options(config: Config, mesh: Mesh) -> dict[str, str] | None:
    """Return the options of XLA that programs on this mesh are compiled with; None without TPUs."""
    return config.run.compiler_options if platform(mesh) == "tpu" else None


@dataclasses.dataclass(frozen=True, eq=False)
class _Functions:
    """The functions that become programs."""

    config: Config
    mesh: Mesh
    model: Family
    optimizer: optax.GradientTransformation
    gather: Callable[[Blocks], tuple[Array, Array]]
    sizes: Layout
    replicas: int

    @property
    def execution(self) -> Execution:
        """Execution of the model on the mesh."""
        return Execution(self.mesh, microbatches=self.sizes.microbatches, quant=self.config.quant)

    @property
    def update_specs(self) -> Any:
        """Shardings of the gradients and of the update."""
        return update_shardings(self.mesh, self.model, self.config.model, self.config.optim.axes)

    def init_state(self, seed: Array) -> State:
        params = self.model.init(self.config.model, jax.random.key(seed))
        state = {"step": jnp.zeros((), jnp.int32), "params": params, "opt": self.optimizer.init(params)}
        averages = self.model.averages(self.config.model)
        return state | ({"averages": averages} if averages else {})

    def train(self, state: State, blocks: Blocks, flags: Array) -> tuple[State, dict[str, Array]]:
        config, reduction = self.config, _reduction(self.config, self.execution, self.sizes, self.model)
        step, key_B = state["step"], self._example_keys(state["step"], 0)
        context = Context(state.get("averages", {}), step, _rounding_key(config, step), key_B)
        parts = config.optim.grad_accum_steps
        loss, grads, averages = mean_gradients(reduction, state["params"], context, self.gather(blocks), parts)
        after, metrics = self._update(state, loss, grads, averages)
        # After the loss: see collective_order.py.
        return after, metrics | {"flags": jnp.max(flags + (loss == -jnp.inf), axis=0)}

    def share(
        self, flattening: Flattening, state: State, blocks: Blocks, replica: Array
    ) -> tuple[Array, dict[str, Array]]:
        key = _rounding_key(self.config, state["step"])
        key = None if key is None else jax.random.fold_in(key, replica)
        key_B = self._example_keys(state["step"], replica * self.sizes.global_batch)
        context = Context(state.get("averages", {}), state["step"], key, key_B)
        automatic = Automatic(self.execution, functools.partial(self.model.sums, self.config.model))
        parts = self.config.optim.grad_accum_steps
        loss, weight, grads, averages = sum_gradients(automatic, state["params"], context, self.gather(blocks), parts)
        # The changes alone: vectors may be bfloat16, in which averages would lose most changes.
        changes = jax.tree.map(jnp.subtract, averages, state.get("averages", {}))
        return flattening.flatten({"grads": grads, "averages": changes}), {"loss": loss, "weight": weight}

    def update_from_sum(
        self, flattening: Flattening, state: State, flat_DN: Array, loss: Array, weight: Array
    ) -> tuple[State, dict[str, Array]]:
        tree, weight = flattening.unflatten(flat_DN), jnp.maximum(weight, 1.0)
        grads = jax.tree.map(lambda g: g / weight, tree["grads"])
        averages = jax.tree.map(
            lambda average, change: average + change / self.replicas, state.get("averages", {}), tree["averages"]
        )
        return self._update(state, loss / weight, grads, averages)

    def evaluate(self, params: Params, blocks: Blocks, averages: Params | None = None) -> Sums:
        context = Context(averages or {}, None, None)
        sums = self.model.sums(self.config.model, self.execution, params, context, *self.gather(blocks))
        return sums._replace(averages={})

    def translate(self, params: Params, blocks: Blocks) -> Translations:
        assert self.model.translate is not None
        record_BS, weight_B = self.gather(blocks)
        source_BT, reference_BT = halves(record_BS)
        number_BT = self.model.translate(self.config.model, self.execution, params, source_BT, weight_B)
        return Translations(number_BT, reference_BT, weight_B)

    def detect(self, params: Params, blocks: Blocks, averages: Params | None = None) -> tuple[Detections, Array]:
        assert self.model.detect is not None
        record_BS, weight_B = self.gather(blocks)
        return self.model.detect(self.config.model, self.execution, params, averages or {}, record_BS), weight_B

    def flattening(self, abstract: State) -> Flattening:
        """Return the form of a share's gradients and averages as vectors."""
        averages = abstract.get("averages", {})
        shapes = {"grads": abstract["params"], "averages": averages}
        replicated = jax.tree.map(lambda _: sharding(self.mesh), averages)
        shardings = {"grads": self.update_specs, "averages": replicated}
        dtype = jnp.bfloat16 if self.config.mesh.sums_in_bfloat16 else jnp.float32
        return Flattening(self.mesh, shapes, shardings, dtype)

    def _example_keys(self, step: Array, first: Any) -> Array | None:
        """Return the keys of the examples that these programs compute, of which `first` is the first in the batch."""
        if not self.config.model.dropout:
            return None
        key_B = example_keys(self.config.run.seed, step, first, self.sizes.global_batch)
        return self.execution.shard(key_B, self.execution.batch)

    def _update(self, state: State, loss: Array, grads: Params, averages: Params) -> tuple[State, dict[str, Array]]:
        # Each chip has its part of the gradients, and updates that part of the parameters alone.
        specs, rate_at = self.update_specs, learning_rate.schedule(self.config.optim, self.config.run.steps)
        grads, params = jax.lax.with_sharding_constraint((grads, state["params"]), (specs, specs))
        updates, opt = self.optimizer.update(grads, state["opt"], params)
        params = jax.lax.with_sharding_constraint(optax.apply_updates(params, updates), specs)
        metrics = {
            "loss": loss,
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": jnp.asarray(rate_at(state["step"]), jnp.float32),
        }
        after = {"step": state["step"] + 1, "params": params, "opt": opt}
        return after | ({"averages": averages} if averages else {}), metrics


def _blocks(example: Record, mesh: Mesh, slots: Slots) -> Blocks:
    shape, placed = (slots.chips, slots.rows), sharding(mesh, ALL)
    return Blocks(
        records=jax.ShapeDtypeStruct((*shape, example.length), example.dtype, sharding=placed),
        weight=jax.ShapeDtypeStruct(shape, jnp.float32, sharding=placed),
    )


def _reduction(config: Config, execution: Execution, sizes: Layout, model: Family) -> Automatic | Explicit:
    sums = functools.partial(model.sums, config.model)
    if config.mesh.grad_reduction == "automatic":
        return Automatic(execution, sums)
    return Explicit(execution, sums, model.specs(config.model), sizes.dp_slices, config.mesh.grad_reduction_dtype)


def _sums_shardings(mesh: Mesh) -> Sums:
    """Return the shardings of the sums of an evaluation: replicated, except for the predictions."""
    replicated: Any = sharding(mesh)
    return Sums(replicated, replicated, replicated, replicated, predictions=sharding(mesh, BATCH))  # type: ignore[arg-type]


def _rounding_key(config: Config, step: Array) -> Array | None:
    """Return the key of a step's stochastic rounding, a function of the step alone."""
    if config.quant.rounding != "stochastic" or not {"dgrad", "wgrad"} & set(config.quant.products):
        return None
    return jax.random.fold_in(jax.random.key(config.run.seed), step)


def _state_shardings(
    mesh: Mesh, abstract: State, optimizer: optax.GradientTransformation, specs: Any, updated: Any
) -> State:
    """Shard the optimizer's moments like the update, parameters by `specs`; replicate the rest."""
    opt = optax.tree.map_params(
        optimizer,
        lambda _, placed: placed,
        abstract["opt"],
        updated,
        transform_non_params=lambda _: sharding(mesh),
    )
    placed: State = jax.tree.map(lambda _: sharding(mesh), abstract) | {"opt": opt}
    return placed | {"params": jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)}


def _make_gather(mesh: Mesh, slots: Slots, global_batch: int) -> Callable[[Blocks], tuple[Array, Array]]:
    """Return the function that assembles the batch from the chips' blocks, sharded over "dp" and "fsdp".

    Hosts that read no data supply blocks of zeros; only the readers' blocks are used, in the order of their rows.
    """

    def rows(block_DR: Array) -> Array:
        if slots.readers != tuple(range(slots.chips)):
            block_DR = block_DR[np.array(slots.readers)]
        row_B: Array = block_DR.reshape(-1, *block_DR.shape[2:])[:global_batch]
        row_B = jax.lax.with_sharding_constraint(row_B, sharding(mesh, BATCH))
        return row_B

    return lambda blocks: (rows(blocks.records), rows(blocks.weight))
