"""Lookups in embedding tables that are replicated, or sharded by columns or rows over the chips of a slice ("fsdp").

Dimensions are the suffix of a name:
    B examples   b examples of a chip   H ids of an example   N = b H lookups of a chip   V rows   E width
    O chips of a slice, which own rows   C rows that a chip requests of another at a time   R replicas ("dp")

A lookup is the sum of the rows of an example's ids. Ids below 0 are padding.

Rows: each chip removes the duplicates from its ids, sends each owner the ids of its rows, and receives the rows, with
two all-to-alls for all tables; the backward pass sends the sums of each row's gradients the same way. Buffers have
places for C rows of each table and owner. If some chip needs more, all chips exchange again, so no lookup is dropped.
Rows are distributed as cards are dealt, because frequent ids may be neighbors. Every replica has all tables: their
gradients cross slices as rows of the batch, gathered by all, and not as tables.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from trainer.parallel.partitioning import Execution
from trainer.parallel.table_placement import COLUMNS, REPLICATED, ROW_MULTIPLE, ROWS, padded_rows, row_capacity

SPECS = {REPLICATED: P(), COLUMNS: P(None, "fsdp"), ROWS: P("fsdp")}  # sharding of a table by its placement
_BITS = ROW_MULTIPLE.bit_length() - 1
_DEALT = np.array([int(f"{n:0{_BITS}b}"[::-1], 2) for n in range(ROW_MULTIPLE)], np.int32)  # neighbors are far apart


def row_of(ids: Any, rows: int) -> Any:
    """Return the rows of ids in a table of `rows` ids; ids below 0 are unchanged."""
    if rows < ROW_MULTIPLE:
        return ids
    dealt = jnp.asarray(_DEALT)[ids % ROW_MULTIPLE] * (padded_rows(rows) // ROW_MULTIPLE) + ids // ROW_MULTIPLE
    return jnp.where(ids < 0, ids, dealt)


def look_up(
    execution: Execution,
    placements: Sequence[str],
    tables: Sequence[Array],
    row_BH: Sequence[Array],
    dtype: Any,
    capacity: int = 0,
) -> list[Array]:
    """Return the sums of rows [B, E] of each table, in `dtype`, in which rows are also exchanged.

    `capacity` is the number of rows of a table that a chip requests of another at a time; 0 = as `row_capacity`.
    """
    chips = execution.mesh.shape["fsdp"]
    outcome: dict[int, Array] = {}
    for nth, name in enumerate(placements):
        if name != ROWS or chips == 1:
            local = _columns if name == COLUMNS else _sums
            mapped = jax.shard_map(
                functools.partial(local, dtype=dtype),
                mesh=execution.mesh,
                in_specs=(SPECS[name], P(execution.batch)),
                out_specs=P(execution.batch),
                check_vma=False,
            )
            outcome[nth] = mapped(tables[nth], row_BH[nth])
    by_rows = [nth for nth in range(len(placements)) if nth not in outcome]
    if by_rows:
        rows = tuple(tables[nth].shape[0] for nth in by_rows)
        exchange = RowExchange(execution.mesh, execution.batch, rows, jnp.dtype(dtype).name, capacity)
        ids = tuple(row_BH[nth] for nth in by_rows)
        outcome |= dict(zip(by_rows, _exchange(exchange, tuple(tables[nth] for nth in by_rows), ids), strict=True))
    return [outcome[nth] for nth in range(len(placements))]


def _sums(table_VE: Array, row_bH: Array, *, dtype: Any) -> Array:
    """Return the sums of rows of a table that this chip has."""
    rows_bHE = jnp.where(row_bH[..., None] < 0, 0.0, table_VE[jnp.maximum(row_bH, 0)])
    sums: Array = jnp.sum(rows_bHE, axis=1).astype(dtype)
    return sums


def _columns(part_VE: Array, row_bH: Array, *, dtype: Any) -> Array:
    """Return the sums of rows of a table of which this chip has some columns: ids are gathered, sums exchanged."""
    all_BH = jax.lax.all_gather(row_bH, "fsdp", tiled=True)
    sums: Array = jax.lax.all_to_all(_sums(part_VE, all_BH, dtype=dtype), "fsdp", 0, 1, tiled=True)
    return sums


class Requests(NamedTuple):
    """The distinct rows that a chip looks up in a table, in their order, which is that of their owners."""

    row_N: Array  # then the number of rows, as padding
    place_N: Array  # for each lookup the place of its row in row_N
    end_O: Array  # place after the last row of each owner


@dataclasses.dataclass(frozen=True)
class RowExchange:
    """Exchange of rows of tables that are sharded by rows."""

    mesh: Mesh
    batch: tuple[str, ...]  # mesh axes of the examples
    rows: tuple[int, ...]  # of each table
    dtype: str  # of the rows and gradients as sent
    capacity: int  # see look_up

    @property
    def owners(self) -> int:
        """Number of chips that a table is sharded over."""
        return int(self.mesh.shape["fsdp"])

    def on_chips(self, function: Any, takes: tuple[Any, ...], gives: Any) -> Any:
        """Return the function of a chip's parts as one of arrays that are sharded like this."""
        return jax.shard_map(function, mesh=self.mesh, in_specs=takes, out_specs=gives, check_vma=False)

    def forward(self, parts: tuple[Array, ...], rows: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the sums of rows [b, E] of each table, of which this chip has a part."""
        requests = [self.requests(row_bH, table) for row_bH, table in zip(rows, self.rows, strict=True)]

        def exchange(nth: Array, received: tuple[Array, ...]) -> tuple[Array, ...]:
            places = [self._places(one, nth) for one in requests]
            own = self._requested(requests, places)
            answers = self._swap(
                [_rows(part, own_OC).astype(self.dtype) for part, own_OC in zip(parts, own, strict=True)]
            )
            return tuple(
                all_NE.at[jnp.where(real_OC, at_OC, len(all_NE))].set(row_OCE, mode="drop")
                for all_NE, (at_OC, real_OC), row_OCE in zip(received, places, answers, strict=True)
            )

        width = parts[0].shape[1]
        received = tuple(jnp.zeros((one.row_N.size, width), self.dtype) for one in requests)
        received = self._repeat(requests, exchange, received)
        place_bH = [one.place_N.reshape(row_bH.shape) for one, row_bH in zip(requests, rows, strict=True)]
        return tuple(
            _sums(all_NE.astype(jnp.float32), jnp.where(row_bH < 0, -1, at_bH), dtype=self.dtype)
            for all_NE, at_bH, row_bH in zip(received, place_bH, rows, strict=True)
        )

    def backward(self, rows: tuple[Array, ...], grads: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the gradients of this chip's parts of the tables [V / O, E], given those of the sums [b, E]."""
        requests = [self.requests(row_bH, table) for row_bH, table in zip(rows, self.rows, strict=True)]
        grad_NE = [_row_gradients(one, row_bH, g) for one, row_bH, g in zip(requests, rows, grads, strict=True)]

        def exchange(nth: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
            places = [self._places(one, nth) for one in requests]
            own = self._requested(requests, places)
            # Places of padding repeat the first gradient; its receiver drops them.
            received = self._swap([g[at_OC].astype(self.dtype) for g, (at_OC, _) in zip(grad_NE, places, strict=True)])
            return tuple(map(self._add, totals, own, received))

        width = grads[0].shape[1]
        zeros = tuple(jnp.zeros((table // self.owners, width), jnp.float32) for table in self.rows)
        return self._repeat(requests, exchange, zeros)

    def _add(self, total_VE: Array, own_OC: Array, grad_OCE: Array) -> Array:
        """Add gradients to those of this chip's part of a table: its own slice's, and those of the other slices."""
        own_N, grad_NE = own_OC.reshape(-1), grad_OCE.reshape(own_OC.size, -1)
        if "dp" in self.batch and self.mesh.shape["dp"] > 1:
            own_N, grad_NE = (jax.lax.all_gather(x, "dp", tiled=True) for x in (own_N, grad_NE))
        place_N = jnp.where(own_N < 0, len(total_VE), own_N)
        total: Array = total_VE.at[place_N].add(grad_NE.astype(jnp.float32), mode="drop")
        return total

    def requests(self, row_bH: Array, table: int) -> Requests:
        """Remove the duplicates of a chip's lookups."""
        row_N = jnp.where(row_bH < 0, table, row_bH).reshape(-1)
        order_N = jnp.argsort(row_N)
        sorted_N = row_N[order_N]
        is_new_N = jnp.concatenate([jnp.ones(1, bool), sorted_N[1:] != sorted_N[:-1]])
        place_N = jnp.cumsum(is_new_N) - 1
        distinct_N = jnp.full_like(row_N, table).at[place_N].set(sorted_N)
        ends = jnp.arange(1, self.owners + 1, dtype=jnp.int32) * (table // self.owners)
        return Requests(
            distinct_N, jnp.zeros_like(place_N).at[order_N].set(place_N), jnp.searchsorted(distinct_N, ends)
        )

    def _places(self, requests: Requests, nth: Array) -> tuple[Array, Array]:
        """Return the places [O, C] of the rows to request in exchange `nth`, and whether there are that many."""
        size = self._size(requests)
        first_O = jnp.concatenate([jnp.zeros(1, requests.end_O.dtype), requests.end_O[:-1]])
        at_OC = first_O[:, None] + nth * size + jnp.arange(size)
        is_real_OC = at_OC < requests.end_O[:, None]
        return jnp.where(is_real_OC, at_OC, 0), is_real_OC

    def _size(self, requests: Requests) -> int:
        return self.capacity or row_capacity(requests.row_N.size, self.owners)

    def exchanges(self, requests: list[Requests]) -> Array:
        """Return the number of exchanges until all chips have all rows, the same on every chip."""
        needed = jnp.zeros((), jnp.int32)
        for one in requests:
            most = jnp.max(jnp.diff(one.end_O, prepend=0))
            needed = jnp.maximum(needed, -(-most // self._size(one)).astype(jnp.int32))
        most_needed: Array = jax.lax.pmax(needed, self.batch)
        return most_needed

    def _repeat(self, requests: list[Requests], exchange: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
        """Apply `exchange` (its number, state -> state) until all chips have all rows."""
        needed = self.exchanges(requests)
        _, state = jax.lax.while_loop(
            lambda carry: carry[0] < needed,
            lambda carry: (carry[0] + 1, exchange(*carry)),
            (jnp.zeros((), jnp.int32), state),
        )
        return state

    def _swap(self, buffers: list[Array]) -> list[Array]:
        """Exchange buffers [O, C, ...], of which each owner gets its part, in one all-to-all."""
        swapped = jax.lax.all_to_all(jnp.concatenate(buffers, axis=1), "fsdp", 0, 0, tiled=True)
        ends = np.cumsum([buffer.shape[1] for buffer in buffers])[:-1]
        return jnp.split(swapped, ends.tolist(), axis=1)

    def _requested(self, requests: list[Requests], places: list[tuple[Array, Array]]) -> list[Array]:
        """Return the places [O, C] in this chip's part of each table that every chip requests; -1 for padding."""
        ids = [jnp.where(real, one.row_N[at], -1) for one, (at, real) in zip(requests, places, strict=True)]
        nth = jax.lax.axis_index("fsdp")
        first = [nth * (table // self.owners) for table in self.rows]
        return [jnp.where(row_OC < 0, -1, row_OC - f) for row_OC, f in zip(self._swap(ids), first, strict=True)]


def _rows(part_VE: Array, own_OC: Array) -> Array:
    rows_OCE: Array = jnp.where(own_OC[..., None] < 0, 0.0, part_VE[jnp.maximum(own_OC, 0)])
    return rows_OCE


def _row_gradients(requests: Requests, row_bH: Array, grad_bE: Array) -> Array:
    """Return the gradients [N, E] of the distinct rows of a chip."""
    b, hots = row_bH.shape
    grad_bHE = jnp.broadcast_to(grad_bE.astype(jnp.float32)[:, None], (b, hots, grad_bE.shape[1]))
    grad_bHE = jnp.where(row_bH[..., None] < 0, 0.0, grad_bHE)
    zeros_NE = jnp.zeros((b * hots, grad_bE.shape[1]), jnp.float32)
    return zeros_NE.at[requests.place_N].add(grad_bHE.reshape(b * hots, -1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _exchange(exchange: RowExchange, tables: tuple[Array, ...], rows: tuple[Array, ...]) -> tuple[Array, ...]:
    forward = exchange.on_chips(exchange.forward, (SPECS[ROWS], P(exchange.batch)), P(exchange.batch))
    sums: tuple[Array, ...] = forward(tables, rows)
    return sums


def _exchange_forward(exchange: RowExchange, tables: Any, rows: Any) -> tuple[tuple[Array, ...], Any]:
    return _exchange(exchange, tables, rows), rows


def _exchange_backward(exchange: RowExchange, rows: Any, grads: Any) -> tuple[Any, Any]:
    backward = exchange.on_chips(exchange.backward, (P(exchange.batch), P(exchange.batch)), SPECS[ROWS])
    no_gradient = tuple(np.zeros(ids.shape, jax.dtypes.float0) for ids in rows)
    return backward(rows, grads), no_gradient


_exchange.defvjp(_exchange_forward, _exchange_backward)
