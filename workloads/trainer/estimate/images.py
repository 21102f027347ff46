"""Closed-form estimate of models of images without JAX: parameters, memory of a chip, FLOPs, traffic, and step time.

Parameters are on every chip; the update is sharded over `optim.update_axes`. The weights are those of resnet.py,
ssd.py and mask_rcnn.py.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from trainer.config import Config, Model
from trainer.data.records import record
from trainer.estimate import mask_rcnn, resnet, ssd
from trainer.estimate.accelerators import Slice
from trainer.estimate.fields import Sent, memory_fields, size_fields, work_fields
from trainer.estimate.kernels import Kernel
from trainer.estimate.memory import Memory, moment_width, vector_width
from trainer.estimate.traffic import sent_fraction
from trainer.parallel import layout
from trainer.parallel.layout import Layout

_KERNELS: dict[str, Callable[[Model], Iterator[Kernel]]] = {
    "resnet": resnet.kernels,
    "ssd": ssd.kernels,
    "mask_rcnn": mask_rcnn.kernels,
}
_WIDTH = 4  # bytes of a parameter
_ROWS = 8  # of a tile, to which XLA's TPU compiler pads the second-minor dimension of an array
_BFLOAT16_ROWS = 16  # of a tile of bfloat16


def estimate(config: Config, slice_: Slice, num_slices: int, *, is_elastic: bool = False) -> dict[str, Any]:
    """Return the fields of closed_form.estimate for a model of images; `tokens_per_second` is that of images.

    No expected time is known, so it equals the bound.
    """
    replicas = num_slices if is_elastic else 1
    chips = layout.Chips(num_slices // replicas, slice_.hosts, slice_.chips_per_host)
    own_config, all_chips = layout.one_slice(config, replicas), chips.total * replicas
    sizes = layout.layout(own_config, chips)
    images = sizes.global_batch * replicas
    of_chip, sent = memory(own_config, sizes, is_elastic=is_elastic), traffic(own_config, sizes, replicas)
    work = sent.work(slice_, images, flops_per_image(config.model))
    return {
        **size_fields(config, slice_, num_slices, sizes, chips=all_chips, parameters=parameters(config.model)),
        "global_batch": images,
        **memory_fields(of_chip, slice_.chip),
        **work_fields(work, of_chip, slice_.chip, all_chips, is_hidden=True),
    }


def parameters(model: Model) -> int:
    """Return the number of parameters."""
    return sum(kernel.numbers + kernel.biases for kernel in _kernels(model))


def flops_per_image(model: Model) -> float:
    """Return the model FLOPs of a training step per image, as the models do."""
    return sum(kernel.flops for kernel in _kernels(model))


def memory(config: Config, sizes: Layout, *, is_elastic: bool = False) -> Memory:
    """Return the memory of each chip for `config`; that of one slice if slices are elastic.

    Of each convolution's outputs are saved: the outputs, the normalized ones in float32, and the input of the next
    convolution. XLA schedules the programs of one slice and of several differently: the latter need up to a quarter
    less. The batch itself and batch norm's averages are not counted.

    Of Mask R-CNN's other results only the largest are counted: those of pooling, whose regions are sharded over tp, or
    the anchors, which are not.
    """
    model, biases = config.model, _biases(config.model)
    all_kernels, numbers = list(_kernels(model)), parameters(model)
    moments = sum(kernel.numbers / math.prod(kernel.parts(*_axes(config, sizes))) for kernel in all_kernels) + biases
    images = sizes.global_batch / (sizes.dp * sizes.fsdp) / config.optim.grad_accum_steps
    width = 2 if model.compute_dtype == "bfloat16" else 4
    normed = [kernel.padded_outputs for kernel in all_kernels if kernel.has_norm]
    saved = sum(kernel.padded_outputs for kernel in all_kernels if kernel.has_norm and not kernel.is_frozen)
    plain = [kernel.padded_outputs for kernel in all_kernels if not kernel.has_norm]
    working = [max(normed) * (_WIDTH + width) / sizes.tp]
    if model.family == "mask_rcnn":
        working += [width * mask_rcnn.pooled_numbers(model) / sizes.tp, mask_rcnn.anchor_bytes(model)]
    return Memory(
        state=_WIDTH * numbers + moment_width(config) * moments,
        gradients=_WIDTH * numbers * (1 if config.optim.grad_accum_steps == 1 else 2),
        vectors=vector_width(config) * numbers if is_elastic else 0.0,
        copies=0.0,
        saved=images * (saved * (_WIDTH + 2 * width) + sum(plain) * width) / sizes.tp,
        working=images * max(working),
    )


def traffic(config: Config, sizes: Layout, replicas: int = 1) -> Sent:
    """Return the traffic of a step; with `replicas` elastic slices, `sizes` are those of one.

    Inside a slice gradients are all-reduced in the compute dtype, and those of the head in float32. If the update is
    sharded over fsdp, new parameters are gathered: by another all-reduce if a chip's part is not larger than a tile.
    Between slices each chip all-reduces its part of the gradients, and gathers new parameters if the update is sharded
    over dp: whole ones, if it is sharded over dp alone. If it is not sharded, a chip's part are some rows of each
    gradient, and a second all-reduce inside the slice gathers the sums.

    With fewer images than chips, those of the first slices supply all records, and send a copy to every chip of tp.
    Mask R-CNN's chips of tp exchange the rows of pooled features for regions. Rows at the borders of images that are
    sharded over tp, and statistics of batch norm, are not counted.
    """
    model, biases, axes = config.model, _biases(config.model), config.optim.axes
    width, slices = 2 if model.compute_dtype == "bfloat16" else 4, sizes.dp_slices
    over_fsdp = sizes.fsdp if "fsdp" in axes else 1
    inside = sent_fraction(sizes.fsdp * sizes.tp * (sizes.dp // slices))
    ici, dcn = 2 * inside * _WIDTH * biases, 2 * sent_fraction(slices) * _WIDTH * biases
    if model.family == "mask_rcnn" and model.pooling == "one_hot":
        images = sizes.global_batch / (sizes.dp * sizes.fsdp)
        ici += sent_fraction(sizes.tp) * images * width * mask_rcnn.pooled_numbers(model) / sizes.tp
    for kernel in _kernels(model):
        sent = 0 if kernel.is_frozen else _WIDTH if kernel.is_float32 else width
        parts, parts_of_slices = kernel.parts(over_fsdp), kernel.parts(*_axes(config, sizes))
        part, smallest = kernel.numbers / math.prod(parts), kernel.numbers / math.prod(parts_of_slices)
        if slices > 1 and not axes:
            part = smallest = _numbers_of_rows(kernel, sizes.fsdp)
            ici += inside * kernel.numbers * 2 * sent
        ici += inside * kernel.numbers * (2 * sent + _gathered(kernel, parts) * _WIDTH)
        dcn += 2 * sent_fraction(slices) * sent * part + ((slices - 1) * _WIDTH * smallest if smallest < part else 0.0)
    if config.mesh.grad_reduction == "explicit":
        dcn = 2 * sent_fraction(slices) * vector_width(config) * parameters(model) / (sizes.dp // slices)
    if slices > 1 and sizes.global_batch < sizes.dp * sizes.fsdp * sizes.tp:
        dcn += sizes.tp * record(model).length
    return Sent(ici, dcn + 2 * sent_fraction(replicas) * vector_width(config) * parameters(model))


def _numbers_of_rows(kernel: Kernel, chips: int) -> int:
    """Return the numbers in a chip's share of a kernel's rows: whole tiles of bfloat16, none on some chips."""
    *others, rows, columns = kernel.shape
    return math.prod(others) * min(rows, math.ceil(rows / chips / _BFLOAT16_ROWS) * _BFLOAT16_ROWS) * columns


def _gathered(kernel: Kernel, parts: tuple[int, ...]) -> int:
    """Return how often a chip sends the weights of these parts when they are gathered: twice in an all-reduce."""
    rows = [length / count for length, count in zip(kernel.shape, parts, strict=True) if count > 1]
    return (2 if min(rows) <= _ROWS else 1) if rows else 0


def _axes(config: Config, sizes: Layout) -> tuple[int, ...]:
    """Return the sizes of the axes that the update is sharded over."""
    return tuple(getattr(sizes, axis) for axis in ("fsdp", "dp") if axis in config.optim.axes)


def _biases(model: Model) -> int:
    """Return the number of gains and biases, which every chip updates."""
    return sum(kernel.biases for kernel in _kernels(model))


def _kernels(model: Model) -> Iterator[Kernel]:
    return _KERNELS[model.family](model)
