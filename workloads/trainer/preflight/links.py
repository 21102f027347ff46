"""Exchanges between pairs of hosts: within slices (ICI) and between slices (DCN)."""

# mypy: disallow-untyped-calls=False

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.errors import ChipsError
from trainer.preflight.pairs import Pair, Rounds

_CHIP_BYTES, _CHIP_BYTES_ON_CPU = 64 << 20, 1 << 20  # that a chip sends in an exchange
_RUNS = 3  # of which the fastest counts: two hosts begin the first at different times


class Exchange:
    """Exchange of data between the chips of pairs of hosts, chip by chip in both directions."""

    def __init__(self, processes: int) -> None:
        """Raise ChipsError if hosts have different numbers of chips."""
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        self.chips = len(jax.local_devices())
        counts = [sum(device.process_index == process for device in devices) for process in range(processes)]
        if len(set(counts)) > 1:
            raise ChipsError(f"hosts have different numbers of chips: {counts}")
        size = _CHIP_BYTES_ON_CPU if devices[0].platform == "cpu" else _CHIP_BYTES
        self._size, self.host_bytes = size, size * self.chips
        self._mesh = Mesh(np.array(devices), ("chip",))
        placed = NamedSharding(self._mesh, P("chip"))
        self._sent = jax.make_array_from_callback((len(devices), size // 4), placed, self._part)

    def prepare(self, pairs: Sequence[Pair]) -> Callable[[], float]:
        """Return the function that exchanges once and returns the seconds until this host has its data."""
        chips = [(a * self.chips + n, b * self.chips + n) for a, b in pairs for n in range(self.chips)]
        both_ways = [*chips, *((b, a) for a, b in chips)]
        permute = jax.shard_map(
            partial(jax.lax.ppermute, axis_name="chip", perm=both_ways),
            mesh=self._mesh,
            in_specs=P("chip"),
            out_specs=P("chip"),
        )
        compiled = jax.jit(permute).lower(self._sent).compile()

        def exchange() -> float:
            began = time.perf_counter()
            self._received = jax.block_until_ready(compiled(self._sent))
            return time.perf_counter() - began

        return exchange

    def is_right(self, partner: int) -> bool:
        """Return whether the chips have received what the partner's have sent in the last exchange."""
        first = partner * self.chips
        shards = sorted(self._received.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        width = self._sent.shape[1]
        return all(
            np.array_equal(np.asarray(shard.data), self._content(first + n, width)) for n, shard in enumerate(shards)
        )

    def _part(self, index: Any) -> np.ndarray[Any, Any]:
        return self._content(index[0].start or 0, self._size // 4)

    def _content(self, chip: int, width: int) -> np.ndarray[Any, Any]:
        return (np.arange(width, dtype=np.uint32) * np.uint32(2654435761) ^ np.uint32(chip))[None]


def measure(
    exchange: Exchange, process: int, exchanges: Rounds, name: Callable[[int], str]
) -> tuple[list[tuple[Pair, float]], str]:
    """Return the pairs that this host is in, each with the seconds of its fastest exchange, and what is wrong."""
    measured, problems = [], []
    for pairs in exchanges:
        exchange_once = exchange.prepare(pairs)
        seconds = min(exchange_once() for _ in range(_RUNS))
        own = next((pair for pair in pairs if process in pair), None)
        if own is None:
            continue
        partner = own[1] if own[0] == process else own[0]
        measured.append((own, round(seconds, 7)))
        if not exchange.is_right(partner):
            problems.append(f"received wrong data from {name(partner)}")
    return measured, "; ".join(problems)
