"""DLRM (Naumov et al., Deep Learning Recommendation Model, 2019), in the form of MLPerf: a model of clicks.

Dimensions are the suffix of a name:
    B batch   D integers   E width of embeddings   F features: the integers as one, and each category
    P = F (F - 1) / 2 pairs of features   H ids of a category   S numbers of a record
The MLPs are small and replicated; `embedding.py` places the tables. Parameters and sums are float32.
"""

# mypy: disallow-untyped-calls=False

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from trainer.config import Model, positive_integers
from trainer.data.clicks import click_format
from trainer.models.embedding import SPECS, look_up, row_of
from trainer.models.family import Context, Params, Predictions, Sums
from trainer.parallel.partitioning import Execution
from trainer.parallel.table_placement import padded_rows, placements


def shapes(model: Model) -> Params:
    """Return the shape of every parameter."""
    features = len(model.table_rows) + 1
    bottom = (model.dense_features, *positive_integers(model.bottom_mlp), model.embed)
    top = (model.embed + features * (features - 1) // 2, *positive_integers(model.top_mlp), 1)
    return {
        "bottom": _layers(bottom),
        "tables": {_name(n): (padded_rows(rows), model.embed) for n, rows in enumerate(model.table_rows)},
        "top": _layers(top),
    }


def specs(model: Model) -> Params:
    """Return the sharding of every parameter, of tables by their placement; the MLPs are replicated."""
    replicated: Params = jax.tree.map(lambda _: P(), shapes(model), is_leaf=_is_shape)
    return replicated | {"tables": {_name(n): SPECS[name] for n, name in enumerate(placements(model))}}


def is_gain(path: tuple[Any, ...]) -> bool:
    """Return whether the parameter at a tree path is a bias."""
    return bool(path[-1].key == "bias")


def layer_axes(path: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the axes along which a parameter stacks tensors of several layers: none."""
    return ()


def init(model: Model, key: Array) -> Params:
    """Return fresh parameters as MLPerf's reference does; rows of tables are uniform up to 1 / sqrt(rows)."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes(model), is_leaf=_is_shape)
    rows = {_name(n): count for n, count in enumerate(model.table_rows)}

    def leaf(key: Array, path: tuple[Any, ...], shape: tuple[int, ...]) -> Array:
        if path[0].key == "tables":
            limit = 1 / math.sqrt(rows[path[1].key])
            return jax.random.uniform(key, shape, minval=-limit, maxval=limit)
        deviation = math.sqrt((1 if is_gain(path) else 2) / sum(shape))
        return deviation * jax.random.normal(key, shape)

    keys = jax.random.split(key, len(leaves))
    params: Params = jax.tree.unflatten(tree, [leaf(k, *of) for k, of in zip(keys, leaves, strict=True)])
    return params


def examples(model: Model, record_BS: Array) -> tuple[Array, Array, list[Array]]:
    """Return (labels [B], log(1 + integer) [B, D] in float32, and the rows [B, H] of each category, -1 for padding)."""
    form = click_format(model)
    dense_BD = jnp.log1p(record_BS[:, 1 : 1 + form.dense].astype(jnp.float32))
    rows = []
    for start, hots, table in zip(form.offsets, form.hots, form.tables, strict=True):
        id_BH = record_BS[:, start + 1 : start + 1 + hots]
        rows.append(row_of(jnp.where(np.arange(hots) < record_BS[:, start, None], id_BH, -1), table))
    return record_BS[:, 0], dense_BD, rows


def logits(model: Model, execution: Execution, params: Params, dense_BD: Array, rows: Sequence[Array]) -> Array:
    """Return the float32 logits [B] of a click."""
    dtype = jnp.dtype(model.compute_dtype)
    tables = [params["tables"][_name(n)] for n in range(len(rows))]
    sums = look_up(execution, placements(model), tables, rows, dtype, model.rows_per_exchange)
    x_BE = jax.nn.relu(_mlp(params["bottom"], dense_BD.astype(dtype))).astype(dtype)
    x_BFE = jnp.stack([x_BE, *sums], axis=1)
    product_BFF = jnp.einsum("bfe,bge->bfg", x_BFE, x_BFE, preferred_element_type=jnp.float32)
    first, second = np.tril_indices(x_BFE.shape[1], -1)
    pair_BP = product_BFF[:, first, second].astype(dtype)
    logit_B: Array = _mlp(params["top"], jnp.concatenate([x_BE, pair_BP], axis=1))[:, 0]
    return logit_B


def sums(
    model: Model, execution: Execution, params: Params, context: Context, record_BS: Array, weight_B: Array
) -> Sums:
    """Return the sums of the log losses, and in an evaluation the predictions."""
    label_B, dense_BD, rows = examples(model, record_BS)
    logit_B = logits(model, execution, params, dense_BD, rows)
    loss_B = jax.nn.softplus(logit_B) - label_B * logit_B
    loss, weight = jnp.sum(loss_B * weight_B), jnp.sum(weight_B)
    is_training = context.step is not None
    predictions = None if is_training else Predictions(logit_B, jnp.where(weight_B > 0, label_B, -1))
    return Sums(loss, weight, None, context.averages, predictions)


def flops_per_item(model: Model) -> float:
    """Return the model FLOPs of a training step per example: three times those of the forward pass's products."""
    features = len(model.table_rows) + 1
    matrices = 0
    for path, shape in jax.tree_util.tree_flatten_with_path(shapes(model), is_leaf=_is_shape)[0]:
        if path[0].key != "tables" and not is_gain(path):
            matrices += math.prod(shape)
    return 3 * 2.0 * (matrices + features * features * model.embed)


def _layers(widths: tuple[int, ...]) -> Params:
    pairs = enumerate(itertools.pairwise(widths), 1)
    return {f"layer{n}": {"dense": (before, after), "bias": (after,)} for n, (before, after) in pairs}


def _mlp(layers: Params, x: Array) -> Array:
    """Apply layers, with a ReLU between two; the products are of the input's dtype, the output is float32."""
    y = x.astype(jnp.float32)
    for n in range(1, len(layers) + 1):
        w = layers[f"layer{n}"]
        y = jnp.dot(x, w["dense"].astype(x.dtype), preferred_element_type=jnp.float32) + w["bias"]
        x = jax.nn.relu(y).astype(x.dtype)
    return y


def _name(nth: int) -> str:
    """Return the key of a table; keys are sorted as the tables are."""
    return f"table{nth + 1:03d}"


def _is_shape(x: Any) -> bool:
    return isinstance(x, tuple)
