"""What a model is to the rest of the trainer: functions over plain pytrees, which step/programs.py puts together."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from trainer.config import Model
from trainer.parallel.partitioning import Execution

Params = dict[str, Any]
Path = tuple[Any, ...]  # of a parameter in the tree: keys of `jax.tree_util`


class Context(NamedTuple):
    """What the loss depends on besides parameters and examples, and is not differentiated by."""

    averages: Params  # running statistics of the model, such as batch norm's; empty for most
    step: Array | None  # finished steps, int32; None in an evaluation
    key: Array | None  # for stochastic rounding, where that is asked for


class Sums(NamedTuple):
    """Sums over a whole batch, however it is spread: their quotients are the means over what is not padding."""

    loss: Array  # weighted losses, in nats
    weight: Array  # weights
    right: Array | None  # weights of the right answers; None where that is not asked
    averages: Params  # as they are after this batch


@dataclasses.dataclass(frozen=True)
class Family:
    """The functions of a kind of model. A record's numbers S come as [B, S], and with them a weight [B]."""

    shapes: Callable[[Model], Params]  # the shape of every parameter
    specs: Callable[[Model], Params]  # how every parameter is spread over the mesh
    is_gain: Callable[[Path], bool]  # whether it is a norm's gain or a bias: neither decayed nor scaled by norms
    layer_axes: Callable[[Path], tuple[int, ...]]  # along which it holds tensors of several layers
    init: Callable[[Model, Array], Params]  # random key -> fresh parameters
    sums: Callable[[Model, Execution, Params, Context, Array, Array], Sums]
    flops_per_item: Callable[[Model], float]  # model FLOPs of a training step for a token, or an image
    averages: Callable[[Model], Params] = lambda model: {}  # fresh ones
