"""Batches: read by the hosts that load data, prefetched by a thread, passed to the step as blocks.

A batch of B rows is divided over the chips of the hosts that read, in mesh order: each of those chips gets a block of R
rows, the other chips get a block of zeros, and the step assembles the rows (step/programs.py). This module does not
communicate with other hosts, so the prefetching thread cannot reorder collectives.
"""

import dataclasses
import functools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from trainer.data.bucket_order import BucketOrder
from trainer.data.records import Record
from trainer.data.sampler import Order
from trainer.parallel.mesh import ALL, sharding

Index = tuple[slice, ...] | None  # of a chip's part in a global array; None for the whole
Read = Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]]


class Blocks(NamedTuple):
    """One block per chip: D chips, R rows, S numbers of a record (records.py)."""

    records: Any  # [D, R, S], of the record's type
    weight: Any  # float32 [D, R]; 0 for padding


@dataclasses.dataclass(frozen=True)
class Slots:
    """The chips that supply rows, and the number of rows of each."""

    chips: int
    readers: tuple[int, ...]  # positions in the flattened mesh, in the order of their rows
    rows: int

    @functools.cached_property
    def first_row(self) -> dict[int, int]:
        """First row in the batch of each chip that supplies rows, by position."""
        return {position: nth * self.rows for nth, position in enumerate(self.readers)}


def make_slots(mesh: Mesh, loader_hosts: int, hosts: int, global_batch: int, *, shards: int = 1) -> Slots:
    """Choose every (hosts / loader_hosts)-th host to read, so that readers are distributed over slices.

    Rows are assigned to chips in mesh order or, if hosts have `shards` of their own, host by host. On a torus the two
    orders may differ; then rows are moved when the batch is assembled.
    """
    stride = hosts // loader_hosts
    owners = [device.process_index for device in mesh.devices.flat]
    readers = [position for position, owner in enumerate(owners) if owner % stride == 0]
    if shards > 1:
        readers.sort(key=lambda position: owners[position])
    return Slots(chips=len(owners), readers=tuple(readers), rows=-(-global_batch // len(readers)))


def shards_of(slots: Slots, positions: Iterable[int], order: Order | BucketOrder) -> set[int]:
    """Return the shards whose rows the chips at these positions of the mesh supply."""
    rows = [range(first, min(first + slots.rows, order.batch)) for first in map(slots.first_row.__getitem__, positions)]
    return {row // (order.batch // order.shards) for chip_rows in rows for row in chip_rows}


def ids_of_chip(slots: Slots, position: int, ids_B: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the record ids [R] of the chip at a position of the mesh; -1 is a row of padding."""
    ids_R = np.full(slots.rows, -1, np.int64)
    start = slots.first_row.get(position)
    if start is not None:
        own_ids = ids_B[start : start + slots.rows]
        ids_R[: len(own_ids)] = own_ids
    return ids_R


def to_blocks(mesh: Mesh, slots: Slots, ids_B: npt.NDArray[np.int64], read: Read | None, record: Record) -> Blocks:
    """Read this host's rows of a batch and put them on its chips.

    A negative id is a row of padding: zeros with weight 0. `read` is None on hosts that do not load.
    """
    placed = sharding(mesh, ALL)

    def ids_of(index: Index) -> npt.NDArray[np.int64]:
        return ids_of_chip(slots, (index[0].start or 0) if index else 0, ids_B)

    def records(index: Index) -> npt.NDArray[Any]:
        ids_R = ids_of(index)
        block_RS = np.zeros((slots.rows, record.length), record.dtype)
        if read is not None and (is_real := ids_R >= 0).any():
            block_RS[is_real] = read(ids_R[is_real])
        return block_RS[None]

    def weight(index: Index) -> npt.NDArray[np.float32]:
        return (ids_of(index) >= 0).astype(np.float32)[None]

    shape = (slots.chips, slots.rows)
    return Blocks(
        jax.make_array_from_callback((*shape, record.length), placed, records),
        jax.make_array_from_callback(shape, placed, weight),
    )


def train_ids(order: Order | BucketOrder, step: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the record ids of `step` (from 0) and of every step after it."""
    while True:
        yield order.ids(step)
        step += 1


def eval_ids(batch: int, first: int, records: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the held-out record ids first..first+records once, the last batch padded with -1."""
    for start in range(0, records, batch):
        ids_B = np.full(batch, -1, np.int64)
        real = min(batch, records - start)
        ids_B[:real] = first + start + np.arange(real)
        yield ids_B


def prefetch(make: Callable[[Any], Blocks], ids: Iterator[Any], depth: int) -> Iterator[Blocks]:
    """Yield make(ids), computed up to `depth` ahead on a thread, whose errors are raised here."""
    ready: queue.Queue[Blocks | BaseException | None] = queue.Queue(maxsize=depth)
    closed = threading.Event()

    def put(item: Blocks | BaseException | None) -> bool:
        while not closed.is_set():
            try:
                ready.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def run() -> None:
        try:
            for ids_B in ids:
                if not put(make(ids_B)):
                    return
            put(None)
        except BaseException as error:
            put(error)

    threading.Thread(target=run, name="prefetch", daemon=True).start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        closed.set()
