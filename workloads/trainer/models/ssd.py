"""SSD (Liu et al., 2016), in the form of MLPerf's SSD300: a ResNet-34 trunk, further layers, and default boxes.

Dimensions are the suffix of a name:
    B batch   H height   W width   C channels   S bytes of a record   D default boxes   K categories and the background
    P candidates of a category   R results
The trunk ends with its third stage, whose stride is 1. Height is sharded over "tp" as in resnet.py, also where chips
have unequal numbers of rows; the last, small layers are replicated.
"""

# mypy: disallow-untyped-calls=False

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from jax.sharding import PartitionSpec as P

from trainer.config import Model
from trainer.models import boxes, object_records, resnet, ssd_loss
from trainer.models.family import Context, Detections, Params, Sums
from trainer.parallel.partitioning import Execution
from trainer.ssd_levels import HALVED, MIDDLE, RATIOS, SCALES, STRIDE, levels

_MIN_ROWS = 4  # of a chip, below which layers are not sharded
_MIN_SCORE, _CANDIDATES, _MAX_OVERLAP = 0.05, 200, 0.5  # of a category's detections, before and in the suppression


@functools.lru_cache(maxsize=4)
def default_boxes(model: Model) -> npt.NDArray[np.float32]:
    """Return the default boxes [D, 4] as fractions of the image: those of MLPerf's reference, in the order of cells."""
    result = []
    for n, level in enumerate(levels(model)):
        small, large = (scale / model.image for scale in SCALES[n : n + 2])
        sizes = [(small, small), (math.sqrt(small * large),) * 2]
        for ratio in RATIOS[n]:
            long, short = small * math.sqrt(ratio), small / math.sqrt(ratio)
            sizes += [(short, long), (long, short)]
        cell = STRIDE * 2**n / model.image if n <= HALVED else 1 / level.grid
        result.append(boxes.anchors(level.grid, level.grid, (cell, cell), np.minimum(sizes, 1).tolist()))
    return np.concatenate(result)


def shapes(model: Model) -> Params:
    """Return the shape of every parameter."""
    further, heads, channels = Params(), Params(), 0
    for n, level in enumerate(levels(model)):
        if n:
            middle = MIDDLE[n - 1] * model.width
            further[f"layer{n}"] = {"reduce": _layer(1, channels, middle), "expand": _layer(3, middle, level.channels)}
        channels = level.channels
        outputs = {"box": 4, "category": model.classes + 1}
        heads[f"level{n + 1}"] = {name: _layer(3, channels, level.shapes * size) for name, size in outputs.items()}
    return resnet.trunk_shapes(model, is_basic=True) | {"further": further, "heads": heads}


def specs(model: Model) -> Params:
    """Return the sharding of every parameter: all are replicated, as they are small; see `optim.update_axes`."""
    replicated: Params = jax.tree.map(lambda _: P(), shapes(model), is_leaf=_is_shape)
    return replicated


def init(model: Model, key: Array) -> Params:
    """Return fresh parameters: the trunk's as ResNet's, the others uniform (Glorot and Bengio, 2010)."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes(model), is_leaf=_is_shape)

    def leaf(key: Array, path: tuple[Any, ...], shape: tuple[int, ...]) -> Array:
        if resnet.is_gain(path):
            return jnp.full(shape, float(path[-1].key == "gain" and path[-2].key != "expand"))
        if path[0].key in ("stem", "stages"):
            return math.sqrt(2 / math.prod(shape[-4:-1])) * jax.random.normal(key, shape)
        limit = math.sqrt(6 / (shape[0] * shape[1] * (shape[2] + shape[3])))
        return jax.random.uniform(key, shape, minval=-limit, maxval=limit)

    keys = jax.random.split(key, len(leaves))
    params: Params = jax.tree.unflatten(tree, [leaf(k, *of) for k, of in zip(keys, leaves, strict=True)])
    return params


def averages(model: Model) -> Params:
    """Return the initial running mean and variance of the trunk's batch norms; they are not trained."""
    return resnet.initial_averages({name: shapes(model)[name] for name in ("stem", "stages")})


class Network(resnet.Network):
    """One pass through the network."""

    def shard(self, x_BHWC: Array) -> Array:
        """Shard the batch, and the height if each chip has rows enough."""
        rows = "tp" if x_BHWC.shape[1] >= _MIN_ROWS * self.execution.mesh.shape["tp"] else None
        return self.execution.shard(x_BHWC, self.execution.batch, rows)

    def predict(self, params: Params, average: Params, x_BHWC: Array) -> tuple[Array, Array, Params]:
        """Return float32 (offsets [B, D, 4] and logits [B, D, K] of all default boxes), and the new averages."""
        averages: Params = {"stages": {}}
        x_BHWC, averages["stem"] = self.stem(params["stem"], average["stem"], x_BHWC)
        for name, w in params["stages"].items():
            stride = 2 if name == "stage2" else 1
            x_BHWC, averages["stages"][name] = self.stage(x_BHWC, w, average["stages"][name], stride)
        predicting = levels(self.model)
        offsets, logits = list[Array](), list[Array]()
        for n, level in enumerate(predicting):
            if n:
                w = params["further"][f"layer{n}"]
                edge, stride = (1, 2) if n <= HALVED else (0, 1)
                x_BHWC = jax.nn.relu(self.convolve(x_BHWC, w["reduce"], 0))
                x_BHWC = jax.nn.relu(self.convolve(x_BHWC, w["expand"], edge, stride))
            head = params["heads"][f"level{n + 1}"]
            for results, name in ((offsets, "box"), (logits, "category")):
                y_BHWC = self.convolve(x_BHWC, head[name], 1).astype(jnp.float32)
                y_BHWC = self.execution.shard(y_BHWC, self.execution.batch)
                results.append(y_BHWC.reshape(len(y_BHWC), level.grid * level.grid * level.shapes, -1))
        return jnp.concatenate(offsets, 1), jnp.concatenate(logits, 1), averages

    def convolve(self, x_BHWC: Array, w: Params, edge: int, stride: int = 1) -> Array:
        """Apply a convolution and its bias, with `edge` zeros on all sides."""
        y_BHWC = jax.lax.conv_general_dilated(
            x_BHWC, w["kernel"].astype(x_BHWC.dtype), (stride, stride), [(edge, edge)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        return self.shard(y_BHWC + w["bias"].astype(x_BHWC.dtype))


def sums(
    model: Model, execution: Execution, params: Params, context: Context, record_BS: Array, weight_B: Array
) -> Sums:
    """Return the sums over images. Examples of weight 0 must not be in a training batch, as for resnet."""
    x_BHWC, objects = object_records.batch(model, record_BS)
    network = Network(model, execution, training=context.step is not None)
    offset_BD4, logit_BDK, averages = network.predict(params, context.averages, x_BHWC)
    default_D4 = jnp.asarray(default_boxes(model))
    loss_B = ssd_loss.losses(ssd_loss.match(objects, default_D4), default_D4, offset_BD4, logit_BDK)
    return Sums(jnp.sum(loss_B * weight_B), jnp.sum(weight_B), None, averages)


def detect(model: Model, execution: Execution, params: Params, averages: Params, record_BS: Array) -> Detections:
    """Return the objects that the network detects: the best candidates of each category that do not overlap."""
    x_BHWC, _ = object_records.batch(model, record_BS)
    offset_BD4, logit_BDK, _ = Network(model, execution, training=False).predict(params, averages, x_BHWC)
    box_BD4 = boxes.clip(boxes.decode(offset_BD4, jnp.asarray(default_boxes(model))))
    return jax.vmap(functools.partial(_detect, model.detections))(box_BD4, jax.nn.softmax(logit_BDK))


def _detect(count: int, box_D4: Array, score_DK: Array) -> Detections:
    """Return the detections of one image, without its dimension."""

    def of_category(score_D: Array) -> tuple[Array, Array]:
        score_P, index_P = jax.lax.top_k(score_D, min(_CANDIDATES, len(score_D)))
        score_P = jnp.where(score_P > _MIN_SCORE, score_P, -jnp.inf)
        position_P, is_kept_P = boxes.suppress(box_D4[index_P], score_P, _MAX_OVERLAP, len(score_P))
        return jnp.where(is_kept_P, score_P[position_P], -jnp.inf), index_P[position_P]

    score_KP, index_KP = jax.vmap(of_category)(score_DK.T[1:])
    pad = max(0, count - score_KP.size)
    score_N = jnp.pad(score_KP.reshape(-1), (0, pad), constant_values=-jnp.inf)
    score_R, best_R = jax.lax.top_k(score_N, count)
    is_real_R = score_R > -jnp.inf
    category_R = jnp.where(is_real_R, best_R // score_KP.shape[1] + 1, 0)
    box_R4 = box_D4[jnp.pad(index_KP.reshape(-1), (0, pad))[best_R]]
    return Detections(box_R4, jnp.where(is_real_R, score_R, 0.0), category_R.astype(jnp.int32))


def flops_per_item(model: Model) -> float:
    """Return the model FLOPs of a training step per image: three times those of the forward pass's products."""
    predicting, total = levels(model), 0.0
    for path, shape in jax.tree_util.tree_flatten_with_path(shapes(model), is_leaf=_is_shape)[0]:
        if resnet.is_gain(path):
            continue
        names = [entry.key for entry in path]
        if names[0] == "stem":
            size = -(-model.image // 2)
        elif names[0] == "stages":
            size = -(-model.image // 4) if names[1] == "stage1" else predicting[0].grid
        elif names[0] == "further":  # "reduce" has the grid of the layer before
            size = predicting[int(names[1].removeprefix("layer")) - (names[2] == "reduce")].grid
        else:
            size = predicting[int(names[1].removeprefix("level")) - 1].grid
        total += 2 * math.prod(shape) * size * size
    return 3 * total


def _layer(size: int, before: int, after: int) -> Params:
    return {"kernel": (size, size, before, after), "bias": (after,)}


def _is_shape(x: Any) -> bool:
    return isinstance(x, tuple)
