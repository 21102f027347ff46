"""ResNet (He et al., 2016): basic blocks, or bottlenecks in the form of MLPerf, whose 3x3 convolution has the stride.

Dimensions are the suffix of a name:
    B batch   H height   W width   C channels   S bytes of a record   K classes
Height is sharded over "tp" as long as it is divisible: the compiler exchanges the rows at the borders (halos) between
neighbors. Batch norm is over `norm_examples` examples, regardless of the chips that hold them. Equal blocks of a stage
are stacked and scanned, as layers are. Parameters and averages are float32.
"""

# mypy: disallow-untyped-calls=False

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from trainer.config import Model
from trainer.data.records import LABEL_BYTES
from trainer.models.family import Context, Params, Sums
from trainer.parallel.partitioning import Execution

MEAN, DEVIATION = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)  # of ImageNet's red, green and blue
_AVERAGE_DECAY = 0.9  # momentum of batch norm's averages
_SMOOTHING = 0.1  # fraction of a label's weight that all classes share (Szegedy et al., 2016)
_EXPANSION = 4  # output channels of a bottleneck per inner channel


def shapes(model: Model) -> Params:
    """Return the shape of every parameter."""
    is_basic = model.block == "basic"
    channels = model.width * 2 ** (len(model.block_counts) - 1) * (1 if is_basic else _EXPANSION)
    head = {"dense": (channels, model.classes), "bias": (model.classes,)}
    return trunk_shapes(model, is_basic=is_basic) | {"head": head}


def trunk_shapes(model: Model, *, is_basic: bool) -> Params:
    """Return the shapes of the stem and of the stages, whose blocks have two convolutions (basic) or three."""

    def block(before: int, width: int, after: int) -> Params:
        units = {"spatial": unit_shapes(3, before, width), "expand": unit_shapes(3, width, after)}
        if not is_basic:
            units = {"reduce": unit_shapes(1, before, width), "spatial": unit_shapes(3, width, width)}
            units |= {"expand": unit_shapes(1, width, after)}
        return units | ({"shortcut": unit_shapes(1, before, after)} if before != after else {})

    stages, channels = Params(), model.width
    for n, count in enumerate(model.block_counts):
        width = model.width * 2**n
        after = width if is_basic else _EXPANSION * width
        stages[f"stage{n + 1}"] = {"first": block(channels, width, after)}
        stages[f"stage{n + 1}"] |= stacked(block(after, width, after), count - 1)
        channels = after
    return {"stem": unit_shapes(7, 3, model.width), "stages": stages}


def unit_shapes(size: int, before: int, after: int) -> Params:
    """Return the shapes of a convolution and its batch norm."""
    return {"kernel": (size, size, before, after), "gain": (after,), "bias": (after,)}


def stacked(block: Params, count: int) -> Params:
    """Return the shapes of the further blocks of a stage, stacked as "rest"; nothing if there are none."""
    return {"rest": jax.tree.map(lambda shape: (count, *shape), block, is_leaf=_is_shape)} if count else {}


def specs(model: Model) -> Params:
    """Return the sharding of every parameter: all are replicated, as they are small; see `optim.update_axes`."""
    replicated: Params = jax.tree.map(lambda _: P(), shapes(model), is_leaf=_is_shape)
    return replicated


def is_gain(path: tuple[Any, ...]) -> bool:
    """Return whether the parameter at a tree path is a norm's gain or a bias."""
    return path[-1].key in ("gain", "bias")


def is_frozen(model: Model, path: tuple[Any, ...]) -> bool:
    """Return whether the parameter at a path within the network is of the stem or of a stage that is not trained."""
    if path[0].key == "stages":
        return int(path[1].key.removeprefix("stage")) <= model.frozen_stages
    return bool(path[0].key == "stem" and model.frozen_stages)


def layer_axes(path: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the axes along which a parameter stacks tensors of several layers."""
    return (0,) if any(entry.key == "rest" for entry in path) else ()


def init(model: Model, key: Array) -> Params:
    """Return fresh parameters (He et al., 2015); each block starts as its shortcut alone (Goyal et al., 2017)."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes(model), is_leaf=_is_shape)
    keys = jax.random.split(key, len(leaves))

    def leaf(key: Array, path: tuple[Any, ...], shape: tuple[int, ...]) -> Array:
        if is_gain(path):
            return jnp.full(shape, float(path[-1].key == "gain" and path[-2].key != "expand"))
        deviation = 0.01 if path[-1].key == "dense" else math.sqrt(2 / math.prod(shape[-4:-1]))
        return deviation * jax.random.normal(key, shape)

    leaf_values = [leaf(key, path, shape) for key, (path, shape) in zip(keys, leaves, strict=True)]
    params: Params = jax.tree.unflatten(tree, leaf_values)
    return params


def averages(model: Model) -> Params:
    """Return the initial running mean and variance of every batch norm; they are not trained."""
    return initial_averages({name: shapes(model)[name] for name in ("stem", "stages")})


def initial_averages(tree: Params) -> Params:
    """Return the initial averages of parts of the network, from the shapes of their parameters."""
    if "kernel" not in tree:
        return {name: initial_averages(below) for name, below in tree.items()}
    return {"mean": jnp.zeros(tree["gain"]), "variance": jnp.ones(tree["gain"])}


def images(model: Model, record_BS: Array) -> tuple[Array, Array]:
    """Return (pixels [B, H, W, 3] of about unit variance in float32, labels [B]) from records of bytes."""
    pixels_BHWC = record_BS[:, :-LABEL_BYTES].reshape(-1, model.image, model.image, 3).astype(jnp.float32)
    label_BL = record_BS[:, -LABEL_BYTES:].astype(jnp.int32)
    return (pixels_BHWC - np.array(MEAN, np.float32)) / np.array(DEVIATION, np.float32), label_BL @ np.array([1, 256])


def pixel_blocks(x_BHWC: Array) -> Array:
    """Return each block of 2 x 2 pixels as one of four times as many channels: [B, H / 2, W / 2, 4 C]."""
    B, H, W, C = x_BHWC.shape
    x_BHIWJC = x_BHWC.reshape(B, H // 2, 2, W // 2, 2, C)
    return x_BHIWJC.transpose(0, 1, 3, 2, 4, 5).reshape(B, H // 2, W // 2, 4 * C)


def block_kernel(kernel_77CD: Array) -> Array:
    """Return the kernel [4, 4, 4 C, D] that gives on `pixel_blocks` what this one gives with a stride of 2 on pixels.

    Three channels use a small part of a TPU's matrix unit; twelve use four times as much (Kumar et al., Scale
    MLPerf-0.6 models on Google TPU-v3 Pods, 2019). A row and a column of zeros make the kernel 8 x 8.
    """
    C, D = kernel_77CD.shape[2:]
    kernel_88CD = jnp.pad(kernel_77CD, ((1, 0), (1, 0), (0, 0), (0, 0)))
    kernel_4I4JCD = kernel_88CD.reshape(4, 2, 4, 2, C, D)
    return kernel_4I4JCD.transpose(0, 2, 1, 3, 4, 5).reshape(4, 4, 4 * C, D)


class Network:
    """One pass through the network: its execution context, and whether averages are computed or used."""

    def __init__(self, model: Model, execution: Execution, *, training: bool) -> None:
        self.model, self.execution, self.training = model, execution, training

    def shard(self, x_BHWC: Array) -> Array:
        """Shard the batch, and the height if it is divisible."""
        rows = "tp" if x_BHWC.shape[1] % self.execution.mesh.shape["tp"] == 0 else None
        return self.execution.shard(x_BHWC, self.execution.batch, rows)

    def unit(self, x_BHWC: Array, w: Params, average: Params, stride: int = 1) -> tuple[Array, Params]:
        """Apply a convolution and its batch norm (Ioffe and Szegedy, 2015); statistics are float32."""
        size = w["kernel"].shape[0]
        edges = size // 2, (size - 1) // 2
        y_BHWC = jax.lax.conv_general_dilated(
            x_BHWC, w["kernel"].astype(x_BHWC.dtype), (stride, stride), [edges] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        y_BHWC = self.shard(y_BHWC).astype(jnp.float32)
        mean, variance = average["mean"], average["variance"]
        if self.training:
            B, H, W, C = y_BHWC.shape
            groups = B // (min(self.model.norm_examples, B) or B)
            y_GEHWC = y_BHWC.reshape(groups, -1, H, W, C)
            mean = jnp.mean(y_GEHWC, (1, 2, 3), keepdims=True)
            variance = jnp.mean(jnp.square(y_GEHWC - mean), (1, 2, 3), keepdims=True)
            y_BHWC = ((y_GEHWC - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(y_BHWC.shape)
            batch = {"mean": jnp.mean(mean, (0, 1, 2, 3)), "variance": jnp.mean(variance, (0, 1, 2, 3))}
            average = jax.tree.map(lambda old, new: _AVERAGE_DECAY * old + (1 - _AVERAGE_DECAY) * new, average, batch)
        else:
            y_BHWC = (y_BHWC - mean) * jax.lax.rsqrt(variance + 1e-5)
        return (y_BHWC * w["gain"] + w["bias"]).astype(x_BHWC.dtype), average

    def block(self, x_BHWC: Array, w: Params, average: Params, stride: int = 1) -> tuple[Array, Params]:
        """Apply a block, a bottleneck or a basic one, and its shortcut."""
        averages, y_BHWC = Params(), x_BHWC
        if "reduce" in w:
            y_BHWC, averages["reduce"] = self.unit(x_BHWC, w["reduce"], average["reduce"])
            y_BHWC = jax.nn.relu(y_BHWC)
        y_BHWC, averages["spatial"] = self.unit(y_BHWC, w["spatial"], average["spatial"], stride)
        y_BHWC, averages["expand"] = self.unit(jax.nn.relu(y_BHWC), w["expand"], average["expand"])
        if "shortcut" in w:
            x_BHWC, averages["shortcut"] = self.unit(x_BHWC, w["shortcut"], average["shortcut"], stride)
        return jax.nn.relu(x_BHWC + y_BHWC), averages

    def stem(self, w: Params, average: Params, x_BHWC: Array) -> tuple[Array, Params]:
        """Apply the first convolution to images, and its pooling; the output has a quarter of their height."""
        x_BHWC, stride = self.shard(x_BHWC.astype(jnp.dtype(self.model.compute_dtype))), 2
        if self.model.space_to_depth:
            x_BHWC, stride = self.shard(pixel_blocks(x_BHWC)), 1
            w = w | {"kernel": block_kernel(w["kernel"])}
        x_BHWC, average = self.unit(x_BHWC, w, average, stride)
        return self.shard(_max_pool(jax.nn.relu(x_BHWC))), average

    def stage(self, x_BHWC: Array, w: Params, average: Params, stride: int) -> tuple[Array, Params]:
        """Apply the blocks of a stage, the first of which has the stride."""
        x_BHWC, first = self.block(x_BHWC, w["first"], average["first"], stride)
        if "rest" not in w:
            return x_BHWC, {"first": first}
        x_BHWC, rest = jax.lax.scan(lambda x, layer: self.block(x, *layer), x_BHWC, (w["rest"], average["rest"]))
        return x_BHWC, {"first": first, "rest": rest}

    def stages(self, params: Params, average: Params, x_BHWC: Array) -> tuple[list[Array], Params]:
        """Return the output [B, H, W, C] of every stage and the new averages."""
        outputs, averages = list[Array](), Params(stages={})
        x_BHWC, averages["stem"] = self.stem(params["stem"], average["stem"], x_BHWC)
        for name, w in params["stages"].items():
            stride = 1 if name == "stage1" else 2
            x_BHWC, averages["stages"][name] = self.stage(x_BHWC, w, average["stages"][name], stride)
            outputs.append(x_BHWC)
        return outputs, averages

    def logits(self, params: Params, average: Params, x_BHWC: Array) -> tuple[Array, Params]:
        """Return float32 logits [B, K] and the new averages."""
        outputs, averages = self.stages(params, average, x_BHWC)
        x_BC = jnp.mean(outputs[-1].astype(jnp.float32), (1, 2))
        return x_BC @ params["head"]["dense"] + params["head"]["bias"], averages


def sums(
    model: Model, execution: Execution, params: Params, context: Context, record_BS: Array, weight_B: Array
) -> Sums:
    """Return the sums over images. Labels are smoothed in training only.

    Examples of weight 0 must not be in a training batch, as batch norm would include them.
    """
    x_BHWC, label_B = images(model, record_BS)
    logits_BK, averages = Network(model, execution, training=context.step is not None).logits(
        params, context.averages, x_BHWC
    )
    smoothing = _SMOOTHING if context.step is not None else 0.0
    target_BK = (1 - smoothing) * jax.nn.one_hot(label_B, model.classes) + smoothing / model.classes
    loss_B = jax.nn.logsumexp(logits_BK, axis=-1) - jnp.sum(logits_BK * target_BK, axis=-1)
    correct_B = jnp.argmax(logits_BK, axis=-1) == label_B
    return Sums(jnp.sum(loss_B * weight_B), jnp.sum(weight_B), jnp.sum(correct_B * weight_B), averages)


def flops_per_item(model: Model) -> float:
    """Return the model FLOPs of a training step per image.

    They are three times those of the forward pass's products, and those of frozen parts once.
    """
    total, pixels = 0.0, math.prod(model.image_sides)
    for path, shape in jax.tree_util.tree_flatten_with_path(shapes(model), is_leaf=_is_shape)[0]:
        if is_gain(path):
            continue
        if path[0].key == "head":
            cells = 1.0
        elif path[0].key == "stem":
            cells = pixels / 4
        else:  # The stem and the pooling halve the image, and so does the 3x3 convolution of each later stage.
            stage = int(path[1].key.removeprefix("stage"))
            before = stage > 1 and (path[2].key, path[3].key) == ("first", "reduce")
            cells = pixels / 4 ** (stage if before else stage + 1)
        total += (1 if is_frozen(model, path) else 3) * 2 * math.prod(shape) * cells
    return total


def _max_pool(x_BHWC: Array) -> Array:
    """Max-pool 3 x 3 with stride 2."""
    window, stride, edge = (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    return jnp.asarray(jax.lax.reduce_window(x_BHWC, -jnp.inf, jax.lax.max, window, stride, edge))


def _is_shape(x: Any) -> bool:
    return isinstance(x, tuple)
