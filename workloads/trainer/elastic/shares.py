"""Work of a slice in a reduction: the gradient, or the evaluation, of the shares that it is responsible for."""

# mypy: disallow-untyped-calls=False

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from trainer.data import batches as data
from trainer.elastic.handover import local_parts
from trainer.elastic.reduction import Share, Vector
from trainer.setup import Run
from trainer.step.programs import State


class ShareBatches:
    """The batches of each share, read ahead for those that are computed step after step."""

    def __init__(self, run: Run) -> None:
        self._run, self._rows = run, run.batch // run.job.host.replicas
        self._readers: dict[int, tuple[int, Iterator[data.Blocks]]] = {}
        self.waited_seconds = 0.0  # for batches, since the caller has set it to 0

    def rows(self, replica: int) -> slice:
        """Return the rows of the batch in a share."""
        return slice(replica * self._rows, (replica + 1) * self._rows)

    def __call__(self, replica: int, step: int) -> data.Blocks:
        """Return the blocks of a share of the batch after `step` steps."""
        next_step, reader = self._readers.pop(replica, (-1, iter(())))
        if next_step != step:
            reader = self._read(replica, step)
        began = time.monotonic()
        blocks = next(reader)
        self.waited_seconds += time.monotonic() - began
        self._readers[replica] = step + 1, reader
        return blocks

    def keep(self, replicas: list[int]) -> None:
        """Stop reading ahead for all other shares."""
        self._readers = {replica: self._readers[replica] for replica in replicas if replica in self._readers}

    def _read(self, replica: int, step: int) -> Iterator[data.Blocks]:
        config, rows = self._run.job.config, self.rows(replica)
        ids = (ids_B[rows] for ids_B in data.train_ids(self._run.order, step))
        batches = itertools.islice(zip(ids, itertools.count(step)), max(0, config.run.steps - step))
        return data.prefetch(lambda batch: self._run.blocks(*batch), batches, config.data.prefetch)


class Gradients:
    """The gradients of shares in one step."""

    def __init__(self, run: Run, program: Any, batches: ShareBatches, dispatched: Callable[[], None]) -> None:
        """Prepare; `dispatched` is called while the chips compute a share."""
        self._run, self._program, self._batches, self._dispatched = run, program, batches, dispatched

    def __call__(self, state: State, step: int, replica: int) -> Share:
        """Return a share of the gradient after `step` steps."""
        watchdog, at = self._run.job.watchdog, step + 1
        with watchdog.waiting(f"its data of step {at}", at, is_own=lambda: True):
            blocks = self._batches(replica, step)
        with watchdog.waiting(f"step {at}", at):
            flat_DN, sums = self._program(state, blocks, np.uint32(replica))
            self._dispatched()
            parts = local_parts(flat_DN)
            vector = parts[0].reshape(-1) if len(parts) == 1 else np.concatenate([part.reshape(-1) for part in parts])
            return Share(vector, [float(sums["loss"]), float(sums["weight"])])


def place(vector: Vector, form: jax.ShapeDtypeStruct) -> jax.Array:
    """Return the vectors of all chips [D, N] from those of this host's chips, one after another."""
    devices = sorted(form.sharding.addressable_devices, key=lambda device: device.id)
    parts = vector.reshape(len(devices), 1, form.shape[1])
    placed = [jax.device_put(part, device) for part, device in zip(parts, devices, strict=True)]
    return jax.make_array_from_single_device_arrays(form.shape, form.sharding, placed)
