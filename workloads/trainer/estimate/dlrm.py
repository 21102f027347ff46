"""Closed-form estimate of DLRM without JAX: memory of a chip, FLOPs, traffic, and time of a step.

The terms are those of models/dlrm.py and models/embedding.py, with the placements of parallel/table_placement.py. The
bound of a step's time is that of its slowest part, and of the update of the state, for which a chip reads and writes
all of it; the expected time is the sum of all parts.
"""

import dataclasses
import itertools
import math
from typing import Any

from trainer.config import Config, Model, positive_integers
from trainer.estimate.accelerators import Slice
from trainer.estimate.fields import Sent, memory_fields, size_fields, work_fields
from trainer.estimate.memory import Memory, moment_width, vector_width
from trainer.parallel import layout
from trainer.parallel.layout import Layout
from trainer.parallel.table_placement import COLUMNS, ROWS, padded_rows, place, placements, row_capacity

_WIDTH = 4  # bytes of a parameter, a gradient and an id


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """A table on a mesh."""

    placement: str
    numbers: int  # of all rows
    hots: int
    capacity: int  # rows requested of each chip at a time, if it is sharded by rows

    def held(self, sizes: Layout) -> float:
        """Return the numbers on one chip."""
        return self.numbers / (sizes.fsdp if self.placement in (ROWS, COLUMNS) else 1)


def estimate(config: Config, slice_: Slice, num_slices: int, *, is_elastic: bool = False) -> dict[str, Any]:
    """Return the fields of closed_form.estimate for DLRM; `tokens_per_second` is that of examples."""
    replicas = num_slices if is_elastic else 1
    chips = layout.Chips(num_slices // replicas, slice_.hosts, slice_.chips_per_host)
    own_config, all_chips = layout.one_slice(config, replicas), chips.total * replicas
    sizes = layout.layout(own_config, chips)
    batch = sizes.global_batch * replicas
    of_chip, sent = memory(own_config, sizes, is_elastic=is_elastic), traffic(own_config, sizes, replicas)
    work = sent.work(slice_, batch, flops_per_example(config.model))
    parameters = sum(_matrices(config.model)) + sum(table.numbers for table in _tables(config.model, sizes))
    return {
        **size_fields(config, slice_, num_slices, sizes, chips=all_chips, parameters=parameters),
        "global_batch": batch,
        **memory_fields(of_chip, slice_.chip),
        **work_fields(work, of_chip, slice_.chip, all_chips, is_hidden=False),
    }


def flops_per_example(model: Model) -> float:
    """Return the model FLOPs of a training step per example, as models/dlrm.py does."""
    features = len(model.table_rows) + 1
    return 6.0 * (_matrices(model)[0] + features * features * model.embed)


def memory(config: Config, sizes: Layout, *, is_elastic: bool = False) -> Memory:
    """Return the memory of each chip for `config`; that of one slice if slices are elastic."""
    model, (matrices, biases) = config.model, _matrices(config.model)
    tables = _tables(model, sizes)
    width = 2 if model.compute_dtype == "bfloat16" else 4
    held = [table.held(sizes) for table in tables]
    # Moments are sharded over these axes as well, except those of biases and what "fsdp" already shards.
    over_dp = sizes.dp if "dp" in config.optim.axes else 1
    over_fsdp = sizes.fsdp if "fsdp" in config.optim.axes else 1
    whole = matrices + sum(h for h, table in zip(held, tables, strict=True) if table.placement not in (ROWS, COLUMNS))
    moments = (whole / over_fsdp + (matrices + sum(held) - whole)) / over_dp + biases
    params = _WIDTH * (matrices + biases + sum(held))
    examples = sizes.global_batch / (sizes.dp * sizes.fsdp) / config.optim.grad_accum_steps
    return Memory(
        state=params + moments * moment_width(config),
        gradients=params * (1 if config.optim.grad_accum_steps == 1 else 2),
        vectors=vector_width(config) * (matrices + biases + sum(held)) if is_elastic else 0.0,
        copies=width * matrices if width < 4 else 0.0,
        saved=examples * _saved_bytes(model, width),
        working=_exchange_bytes(model, sizes, tables, examples, width),
    )


def traffic(config: Config, sizes: Layout, replicas: int = 1) -> Sent:
    """Return the traffic of a step; with `replicas` elastic slices, `sizes` are those of one.

    Inside a slice: the exchanges of tables that are sharded by rows or columns, and an all-reduce of the gradients of
    what is replicated. If the update of that is sharded over "fsdp", the new parameters are gathered by another
    all-reduce, and each chip sends only its part between slices. Between slices: for tables that are sharded by rows
    the gradients of a batch's rows, gathered by all slices; otherwise an all-reduce of gradients. An explicit reduction
    adds all of them as tables, in its dtype.
    """
    model, chips, slices = config.model, sizes.fsdp, sizes.dp_slices
    width = 2 if model.compute_dtype == "bfloat16" else 4
    examples, others = sizes.global_batch / (sizes.dp * sizes.fsdp), (chips - 1) / chips
    (matrices, biases), tables = _matrices(model), _tables(model, sizes)
    whole, ici, rows, columns = float(matrices), 0.0, 0.0, 0.0
    for table in tables:
        if table.placement == ROWS:
            buffer = chips * table.capacity
            ici += others * buffer * 2 * (_WIDTH + model.embed * width)
            rows += buffer * (_WIDTH + model.embed * width)
        elif table.placement == COLUMNS:
            ici += (chips - 1) * examples * table.hots * _WIDTH + 2 * others * examples * model.embed * width
            columns += table.held(sizes)
        else:
            whole += table.numbers
    is_sharded = "fsdp" in config.optim.axes
    ici += 2 * others * _WIDTH * (whole * (2 if is_sharded else 1) + biases)
    reduced = _WIDTH * (whole / (chips if is_sharded else 1) + columns + biases)
    dcn = 2 * (slices - 1) / slices * reduced + (slices - 1) * rows
    held = matrices + biases + sum(table.held(sizes) for table in tables)
    if config.mesh.grad_reduction == "explicit":
        dcn = 2 * (slices - 1) / slices * held * vector_width(config) / (sizes.dp // slices)
    return Sent(ici, dcn + 2 * (replicas - 1) / replicas * vector_width(config) * held)


def _tables(model: Model, sizes: Layout) -> list[_Table]:
    examples = sizes.global_batch / (sizes.dp * sizes.fsdp)
    names = placements(place(model, sizes.fsdp, examples))
    tables = []
    for rows, hots, name in zip(model.table_rows, model.table_hots, names, strict=True):
        capacity = model.rows_per_exchange or row_capacity(math.ceil(examples * hots), sizes.fsdp)
        tables.append(_Table(name, padded_rows(rows) * model.embed, hots, capacity))
    return tables


def _widths(model: Model) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the widths of the MLPs, from their inputs to their outputs."""
    features = len(model.table_rows) + 1
    pairs = features * (features - 1) // 2
    bottom, top = positive_integers(model.bottom_mlp), positive_integers(model.top_mlp)
    return (model.dense_features, *bottom, model.embed), (model.embed + pairs, *top, 1)


def _matrices(model: Model) -> tuple[int, int]:
    """Return the numbers of the MLPs' matrices, and of their biases."""
    widths = _widths(model)
    products = sum(before * after for mlp in widths for before, after in itertools.pairwise(mlp))
    return products, sum(sum(mlp[1:]) for mlp in widths)


def _saved_bytes(model: Model, width: int) -> float:
    """Return the bytes that an example's forward pass saves: inputs of products, and where a ReLU is not 0."""
    features = len(model.table_rows) + 1
    layers = sum(sum(mlp[:-1]) * width + sum(mlp[1:]) for mlp in _widths(model))
    return layers + features * model.embed * width + features * features * 4


def _exchange_bytes(model: Model, sizes: Layout, tables: list[_Table], examples: float, width: int) -> float:
    """Return the bytes of the buffers of the backward pass's exchange.

    They are the gradients of distinct rows in float32, the buffers to send and to receive, and those of all slices.
    """
    total = 0.0
    for table in tables:
        if table.placement == ROWS:
            buffer = sizes.fsdp * table.capacity * model.embed
            total += examples * table.hots * model.embed * 4 + buffer * width * (2 + sizes.dp)
    return total
