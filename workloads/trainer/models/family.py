"""The interface of a model family: functions over plain pytrees, which step/programs.py combines."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from trainer.config import Model
from trainer.parallel.partitioning import Execution

Params = dict[str, Any]
Path = tuple[Any, ...]  # of a parameter: keys of `jax.tree_util`


class Context(NamedTuple):
    """Inputs of the loss besides parameters and examples; they are not differentiated."""

    averages: Params  # running statistics, such as batch norm's; empty for most models
    step: Array | None  # finished steps, int32; None in an evaluation
    key: Array | None  # for stochastic rounding; None if it is not used
    example_key_B: Array | None = None  # of each example, for dropout; None if it is not used


class Predictions(NamedTuple):
    """Predictions of a batch in an evaluation whose metric needs them all."""

    score_B: Array  # float32; higher where a positive is more likely
    label_B: Array  # int32: 1 for a positive, 0 for a negative, -1 for padding


class Detections(NamedTuple):
    """Objects that a model detects in a batch of images, by falling score."""

    box_BK4: Any  # float32: (upper, left, lower, right), fractions of the record's image
    score_BK: Any  # float32
    category_BK: Any  # int32, from 1; 0 where there are fewer detections
    mask_BKMM: Any = None  # float32 probabilities in the region of each box; None of a model without masks


class Sums(NamedTuple):
    """Sums over the whole batch, whatever its sharding; their quotients are means over items without padding."""

    loss: Array  # sum of the weighted losses, in nats
    weight: Array  # sum of the weights
    correct: Array | None  # sum of the weights of correct predictions; None if not counted
    averages: Params  # after this batch
    predictions: Predictions | None = None  # of a model that is evaluated by ranking, in an evaluation


@dataclasses.dataclass(frozen=True)
class Family:
    """The functions of a model family. Records of S numbers come as [B, S], with weights [B]."""

    shapes: Callable[[Model], Params]  # shape of every parameter
    specs: Callable[[Model], Params]  # sharding of every parameter
    is_gain: Callable[[Path], bool]  # True for a norm's gain or a bias, which are neither decayed nor scaled by norms
    layer_axes: Callable[[Path], tuple[int, ...]]  # axes along which it stacks tensors of several layers
    init: Callable[[Model, Array], Params]  # random key -> fresh parameters
    sums: Callable[[Model, Execution, Params, Context, Array, Array], Sums]
    flops_per_item: Callable[[Model], float]  # model FLOPs of a training step per token, or per image
    averages: Callable[[Model], Params] = lambda model: {}  # initial values
    is_frozen: Callable[[Model, Path], bool] = lambda model, path: False  # True for a parameter that is not trained
    # ... source, its lengths -> numbers [B, T] of the translations, as in records; None if it does not translate
    translate: Callable[[Model, Execution, Params, Array, Array], Array] | None = None
    # parameters, averages, records -> what it detects; None if it does not detect
    detect: Callable[[Model, Execution, Params, Params, Array], Detections] | None = None
    trunk: tuple[str, ...] | None = None  # keys of the parameters that are a ResNet's stem and stages; None without one
    # model, chips of "fsdp", examples of a chip -> model with the settings that are chosen for them
    place: Callable[[Model, int, float], Model] = lambda model, chips, examples: model
