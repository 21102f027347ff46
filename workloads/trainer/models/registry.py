"""Registry of the model families; docs/models.md describes them."""

import math

import jax
from jax import Array

from trainer.config import Model
from trainer.data.records import record
from trainer.models import bert, decoder, dlrm, gnmt, mask_rcnn, resnet, ssd, transformer
from trainer.models.dropout import Dropout
from trainer.models.family import Context, Family, Params, Sums
from trainer.models.mfu import flops_per_token
from trainer.parallel import table_placement
from trainer.parallel.partitioning import Execution


def family(model: Model) -> Family:
    """Return the functions of a configured model."""
    return _FAMILIES[model.family]


def parameters(model: Model) -> int:
    """Return the number of a model's parameters."""
    shapes = jax.tree.leaves(family(model).shapes(model), is_leaf=lambda x: isinstance(x, tuple))
    return sum(math.prod(shape) for shape in shapes)


def flops_per_record(model: Model) -> float:
    """Return the model FLOPs of a training step for one example."""
    return family(model).flops_per_item(model) * record(model).items


def _decoder_sums(
    model: Model, execution: Execution, params: Params, context: Context, tokens_BS: Array, weight_B: Array
) -> Sums:
    dropout = Dropout(execution, model.dropout, context.example_key_B)
    loss, weight = decoder.loss_sums(model, execution, params, tokens_BS, weight_B, context.key, dropout)
    return Sums(loss, weight, None, context.averages)


_FAMILIES = {
    "decoder": Family(
        shapes=decoder.shapes,
        specs=decoder.specs,
        is_gain=decoder.is_gain,
        layer_axes=decoder.layer_axes,
        init=decoder.init,
        sums=_decoder_sums,
        flops_per_item=flops_per_token,
    ),
    "bert": Family(
        shapes=bert.shapes,
        specs=bert.specs,
        is_gain=bert.is_gain,
        layer_axes=bert.layer_axes,
        init=bert.init,
        sums=bert.sums,
        flops_per_item=bert.flops_per_item,
    ),
    "resnet": Family(
        shapes=resnet.shapes,
        specs=resnet.specs,
        is_gain=resnet.is_gain,
        layer_axes=resnet.layer_axes,
        init=resnet.init,
        sums=resnet.sums,
        flops_per_item=resnet.flops_per_item,
        averages=resnet.averages,
    ),
    "ssd": Family(
        shapes=ssd.shapes,
        specs=ssd.specs,
        is_gain=resnet.is_gain,
        layer_axes=resnet.layer_axes,
        init=ssd.init,
        sums=ssd.sums,
        flops_per_item=ssd.flops_per_item,
        averages=ssd.averages,
        detect=ssd.detect,
        trunk=(),
    ),
    "mask_rcnn": Family(
        shapes=mask_rcnn.shapes,
        specs=mask_rcnn.specs,
        is_gain=resnet.is_gain,
        layer_axes=resnet.layer_axes,
        init=mask_rcnn.init,
        sums=mask_rcnn.sums,
        flops_per_item=mask_rcnn.flops_per_item,
        averages=resnet.averages,
        is_frozen=mask_rcnn.is_frozen,
        detect=mask_rcnn.detect,
        trunk=("trunk",),
    ),
    "transformer": Family(
        shapes=transformer.shapes,
        specs=transformer.specs,
        is_gain=bert.is_gain,
        layer_axes=transformer.layer_axes,
        init=transformer.init,
        sums=transformer.sums,
        flops_per_item=transformer.flops_per_item,
        translate=transformer.translate,
    ),
    "gnmt": Family(
        shapes=gnmt.shapes,
        specs=gnmt.specs,
        is_gain=bert.is_gain,
        layer_axes=gnmt.layer_axes,
        init=gnmt.init,
        sums=gnmt.sums,
        flops_per_item=gnmt.flops_per_item,
        translate=gnmt.translate,
    ),
    "dlrm": Family(
        shapes=dlrm.shapes,
        specs=dlrm.specs,
        is_gain=dlrm.is_gain,
        layer_axes=dlrm.layer_axes,
        init=dlrm.init,
        sums=dlrm.sums,
        flops_per_item=dlrm.flops_per_item,
        place=table_placement.place,
    ),
}
