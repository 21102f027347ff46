"""Closed-form estimate of ResNet without JAX: parameters, memory of a chip, FLOPs, traffic, and bound of a step's time.

The terms are those of models/resnet.py. Parameters are on every chip; the update is sharded over `optim.update_axes`.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from trainer.config import Config, Model
from trainer.estimate.accelerators import Slice
from trainer.estimate.fields import Work, memory_fields, size_fields, work_fields
from trainer.estimate.memory import Memory, moment_width, vector_width
from trainer.estimate.traffic import sent_fraction
from trainer.parallel import layout
from trainer.parallel.layout import Layout

_EXPANSION = 4  # output channels of a block per inner channel
_WIDTH = 4  # bytes of a parameter
_ROWS, _LANES = 8, 128  # of a tile, to which XLA's TPU compiler pads the two minor dimensions of an array


class Kernel(NamedTuple):
    """Weights of a convolution, or of the head, with those of equal layers in the first dimension."""

    shape: tuple[int, ...]
    layers: int
    size: float  # height and width of the output

    @property
    def numbers(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def outputs(self) -> float:
        """Numbers of an image's outputs of all layers."""
        return self.layers * self.size * self.size * self.shape[-1]

    def parts(self, *axes: int) -> tuple[int, ...]:
        """Return the parts of each dimension after sharding over axes of these sizes (step/update_sharding.py)."""
        parts = [1] * len(self.shape)
        for size in axes:
            fits = [dim for dim, length in enumerate(self.shape) if length % (parts[dim] * size) == 0]
            if fits:
                parts[max(fits, key=lambda dim: (parts[dim] > 1, self.shape[dim]))] *= size
        return tuple(parts)


class Sent(NamedTuple):
    """Bytes that one chip sends in a step."""

    ici: float
    dcn: float


def estimate(config: Config, slice_: Slice, num_slices: int, *, is_elastic: bool = False) -> dict[str, Any]:
    """Return the fields of closed_form.estimate for ResNet; `tokens_per_second` is that of images.

    No expected time is known, so it equals the bound.
    """
    replicas = num_slices if is_elastic else 1
    chips = layout.Chips(num_slices // replicas, slice_.hosts, slice_.chips_per_host)
    own_config, all_chips = layout.one_slice(config, replicas), chips.total * replicas
    sizes = layout.layout(own_config, chips)
    images, flops = sizes.global_batch * replicas, flops_per_image(config.model)
    of_chip, sent = memory(own_config, sizes, is_elastic=is_elastic), traffic(own_config, sizes, replicas)
    work = Work(
        items=images,
        flops=flops * images,
        computed_flops=flops * images,
        ici=sent.ici,
        ici_seconds=sent.ici / (2 * slice_.chip.ici_bandwidth * slice_.chip.dimensions),
        dcn=sent.dcn,
    )
    return {
        **size_fields(config, slice_, num_slices, sizes, chips=all_chips, parameters=parameters(config.model)),
        "global_batch": images,
        **memory_fields(of_chip, slice_.chip),
        **work_fields(work, of_chip, slice_.chip, all_chips, is_hidden=True),
    }


def kernels(model: Model) -> Iterator[Kernel]:
    """Yield the weights of the network."""
    yield Kernel((7, 7, 3, model.width), 1, model.image / 2)
    channels = model.width
    for stage, count in enumerate(model.block_counts, start=1):
        width, size = model.width * 2 ** (stage - 1), model.image / 2 ** (stage + 1)
        after = _EXPANSION * width
        # The 3x3 convolution of a stage's first block halves the image, except in the first stage.
        yield Kernel((1, 1, channels, width), 1, size if stage == 1 else 2 * size)
        yield Kernel((3, 3, width, width), 1, size)
        yield Kernel((1, 1, width, after), 1, size)
        if channels != after:
            yield Kernel((1, 1, channels, after), 1, size)
        if count > 1:
            for shape in ((1, 1, after, width), (3, 3, width, width), (1, 1, width, after)):
                yield Kernel((count - 1, *shape), count - 1, size)
        channels = after
    yield Kernel((channels, model.classes), 1, 1)


def parameters(model: Model) -> int:
    """Return the number of parameters."""
    return sum(kernel.numbers for kernel in kernels(model)) + _biases(model)


def flops_per_image(model: Model) -> float:
    """Return the model FLOPs of a training step per image, as models/resnet.py does."""
    return 3 * sum(2 * kernel.numbers * kernel.size * kernel.size for kernel in kernels(model))


def memory(config: Config, sizes: Layout, *, is_elastic: bool = False) -> Memory:
    """Return the memory of each chip for `config`; that of one slice if slices are elastic.

    Of each convolution's outputs are saved: the outputs, the normalized ones in float32, and the input of the next
    convolution. XLA schedules the programs of one slice and of several differently: the latter need up to a quarter
    less. The batch itself and batch norm's averages are not counted.
    """
    model, biases = config.model, _biases(config.model)
    all_kernels, numbers = list(kernels(model)), parameters(model)
    moments = sum(kernel.numbers / math.prod(kernel.parts(*_axes(config, sizes))) for kernel in all_kernels) + biases
    images = sizes.global_batch / (sizes.dp * sizes.fsdp) / config.optim.grad_accum_steps
    width = 2 if model.compute_dtype == "bfloat16" else 4
    padded = [kernel.outputs * max(1.0, _LANES / kernel.shape[-1]) for kernel in all_kernels[:-1]]
    return Memory(
        state=_WIDTH * numbers + moment_width(config) * moments,
        gradients=_WIDTH * numbers * (1 if config.optim.grad_accum_steps == 1 else 2),
        vectors=vector_width(config) * numbers if is_elastic else 0.0,
        copies=0.0,
        saved=images * sum(padded) * (_WIDTH + 2 * width) / sizes.tp,
        working=images * max(padded) * (_WIDTH + width) / sizes.tp,
    )


def traffic(config: Config, sizes: Layout, replicas: int = 1) -> Sent:
    """Return the traffic of a step; with `replicas` elastic slices, `sizes` are those of one.

    Inside a slice gradients are all-reduced in the compute dtype, and those of the head in float32. If the update is
    sharded over fsdp, new parameters are gathered: by another all-reduce if a chip's part is not larger than a tile.
    Between slices each chip all-reduces its part of the gradients, and gathers new parameters if the update is sharded
    over dp. Rows at the borders of images that are sharded over tp, and statistics of batch norm, are not counted.
    """
    model, biases, axes = config.model, _biases(config.model), config.optim.axes
    width, slices = 2 if model.compute_dtype == "bfloat16" else 4, sizes.dp_slices
    over_fsdp = sizes.fsdp if "fsdp" in axes else 1
    inside = sent_fraction(sizes.fsdp * sizes.tp * (sizes.dp // slices))
    ici, dcn = 2 * inside * _WIDTH * biases, 2 * sent_fraction(slices) * _WIDTH * biases
    *convolutions, head = kernels(model)
    for kernel, sent in (*((kernel, width) for kernel in convolutions), (head, _WIDTH)):
        parts, parts_of_slices = kernel.parts(over_fsdp), kernel.parts(*_axes(config, sizes))
        part, smallest = kernel.numbers / math.prod(parts), kernel.numbers / math.prod(parts_of_slices)
        ici += 2 * inside * sent * kernel.numbers + inside * _gathered(kernel, parts) * _WIDTH * kernel.numbers
        dcn += 2 * sent_fraction(slices) * sent * part + ((slices - 1) * _WIDTH * smallest if smallest < part else 0.0)
    if config.mesh.grad_reduction == "explicit":
        dcn = 2 * sent_fraction(slices) * vector_width(config) * parameters(model) / (sizes.dp // slices)
    return Sent(ici, dcn + 2 * sent_fraction(replicas) * vector_width(config) * parameters(model))


def _gathered(kernel: Kernel, parts: tuple[int, ...]) -> int:
    """Return how often a chip sends the weights of these parts when they are gathered: twice in an all-reduce."""
    rows = [length / count for length, count in zip(kernel.shape, parts, strict=True) if count > 1]
    return (2 if min(rows) <= _ROWS else 1) if rows else 0


def _axes(config: Config, sizes: Layout) -> tuple[int, ...]:
    """Return the sizes of the axes that the update is sharded over."""
    return tuple(getattr(sizes, axis) for axis in ("fsdp", "dp") if axis in config.optim.axes)


def _biases(model: Model) -> int:
    """Return the number of gains and biases: two for each channel after a convolution, and those of the head."""
    *convolutions, _ = kernels(model)
    return sum(2 * kernel.layers * kernel.shape[-1] for kernel in convolutions) + model.classes
