"""Detection of silent data corruption: a comparison of the checksums of all replicas of the state.

Every chip computes a checksum of its part of every array, which any change of one value is certain to change; chips
that hold the same part compare it. Parameters have a copy in every replica ("dp"); gains and the step have one on every
chip along the axes that they are not sharded over. Arrays without a copy, such as the optimizer's state under
weight-update sharding over dp, are not checked.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from trainer.checkpoint.shards import names
from trainer.errors import CorruptError
from trainer.hosts.bootstrap import Host
from trainer.parallel.mesh import ALL, sharding
from trainer.step.programs import State
from trainer.telemetry.metrics import Events

_NAMED = 3  # arrays in the log line; the event has all


@dataclasses.dataclass(frozen=True, slots=True)
class Mismatch:
    """Differing copies of a part of an array: those of `chips` (positions in the flattened mesh) and of `others`.

    `is_certain`: most copies agree with each other, and these chips differ from them. Otherwise it is unknown which
    copies are correct.
    """

    name: str
    chips: tuple[int, ...]
    others: tuple[int, ...]
    is_certain: bool


class Replicas:
    """Checks a run's state at an interval (0: never), and before it is saved."""

    def __init__(self, every: int, mesh: Mesh, state: State, host: Host, events: Events) -> None:
        self.every, self._mesh, self._abstract = every, mesh, state
        self._host, self._events = host, events
        self._program: Any = None
        self._sums: dict[int, tuple[Array, Array]] = {}  # by step, of the last two checks: of chips, of all together

    def compile(self, compiled: Callable[[str, Any, State], Any]) -> None:
        """Compile the program with `compiled(name, program, arguments)`, if checks are enabled."""
        if self.every:
            self._program = compiled("checksum", checksum_program(self._mesh, self._abstract), self._abstract)

    def begin(self, step: int, state: State) -> Array:
        """Start to check the state after `step`; the result [] is 0 if all copies are the same."""
        differ, *sums = self._program(state)
        self._sums = dict([*self._sums.items(), (step, tuple(sums))][-2:])
        return differ  # type: ignore[no-any-return]

    def array_checksums(self, step: int, state: State) -> list[int]:
        """Return the checksums of whole arrays after `step`; check the state first, if that has not been begun.

        Raises CorruptError.
        """
        if step not in self._sums:
            self.require(step, state)
        return [int(value) for value in np.asarray(self._sums[step][1])]

    def require(self, step: int, state: State) -> None:
        """Check the state after `step` and wait for the result. Raises CorruptError."""
        if self.every:
            self.check_result(step, int(self.begin(step, state)))

    def check_result(self, step: int, differ: int) -> None:
        """Raise CorruptError if a check's result is not 0. Every host has the same result and calls it."""
        if not differ:
            return
        fetch = jax.jit(lambda x: x, out_shardings=sharding(self._mesh))
        copies = find_mismatches(np.asarray(fetch(self._sums[step][0])), self._mesh, self._abstract)
        suspects = sorted(
            {self._mesh.devices.flat[chip].process_index for mismatch in copies for chip in _suspect_chips(mismatch)}
        )
        arrays = [
            {
                "array": mismatch.name,
                "chips": [self._name(chip) for chip in mismatch.chips],
                "sure": mismatch.is_certain,
            }
            for mismatch in copies
        ]
        self._events.write("replicas_differ", step, arrays=arrays)
        lines = [self._describe(mismatch) for mismatch in copies[:_NAMED]]
        more = f"; and {len(copies) - _NAMED} more" if len(copies) > _NAMED else ""
        raise CorruptError(f"replicas differ after step {step}: {'; '.join(lines)}{more}", suspects)

    def _describe(self, mismatch: Mismatch) -> str:
        chips = ", ".join(self._name(chip) for chip in mismatch.chips)
        if mismatch.is_certain:
            return f"{mismatch.name} on {chips} differs from the {len(mismatch.others)} other copies"
        return f"{mismatch.name} on {chips} differs from {', '.join(self._name(chip) for chip in mismatch.others)}"

    def _name(self, chip: int) -> str:
        device = self._mesh.devices.flat[chip]
        local = sorted(d.id for d in self._mesh.devices.flat if d.process_index == device.process_index)
        return f"{self._host.name(device.process_index)} chip {local.index(device.id)}"


def checksum_program(mesh: Mesh, abstract: State) -> Any:
    """Return the jitted function from a state to (differ, sums, whole).

    differ: int32 [], the number of arrays whose copies differ, over all chips; sums: uint32 [chips, arrays]; whole:
    uint32 [arrays], of the parts on all chips together.
    """
    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, abstract)
    axes = [replicated_axes(mesh, leaf) for leaf in jax.tree.leaves(abstract)]

    def check(state: State) -> tuple[Array, Array, Array]:
        sum_L = jnp.stack([checksum(leaf) for leaf in jax.tree.leaves(state)])
        differ = jnp.zeros((), jnp.int32)
        for over in sorted(set(axes) - {()}):
            these = sum_L[np.array([n for n, axis in enumerate(axes) if axis == over])]
            differ += jnp.sum(jax.lax.pmax(these, over) != jax.lax.pmin(these, over), dtype=jnp.int32)
        position = jax.lax.axis_index(ALL).astype(jnp.uint32)
        return jax.lax.psum(differ, ALL), sum_L[None], jax.lax.psum(sum_L * (2 * position + 1), ALL)

    mapped = jax.shard_map(check, mesh=mesh, in_specs=(specs,), out_specs=(P(), P(ALL), P()), check_vma=False)
    return jax.jit(mapped)


def checksum(x: Array) -> Array:
    """Return the sum of the bits of x's values, each times its own odd number, modulo 2^32: uint32 [].

    Multiplying by an odd number is one to one modulo 2^32, so a change of any one value changes the sum.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}")).astype(jnp.uint32)
    position = jnp.zeros(x.shape, jnp.uint32)
    for dim in range(x.ndim):
        stride = math.prod(x.shape[dim + 1 :]) % 2**32
        position += jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim) * np.uint32(stride)
    return jnp.sum(bits * (2 * position + 1), dtype=jnp.uint32)


def replicated_axes(mesh: Mesh, leaf: Any) -> tuple[str, ...]:
    """Return the axes of more than one chip that an array is not sharded over, so that it has copies."""
    sharded_axes = {
        name for entry in leaf.sharding.spec if entry for name in ((entry,) if isinstance(entry, str) else entry)
    }
    return tuple(axis for axis in ALL if axis not in sharded_axes and mesh.shape[axis] > 1)


def find_mismatches(sums_DL: npt.NDArray[np.uint32], mesh: Mesh, abstract: State) -> list[Mismatch]:
    """Return the arrays that differ and their chips; one entry for each array and part of it."""
    mismatches = []
    for number, (name, leaf) in enumerate(zip(names(abstract), jax.tree.leaves(abstract), strict=True)):
        over = replicated_axes(mesh, leaf)
        for copies in _copies(mesh.shape, over):
            chips = majority({chip: int(sums_DL[chip, number]) for chip in copies})
            if chips is not None:
                others = tuple(chip for chip in copies if chip not in chips[0])
                mismatches.append(Mismatch(name, chips[0], others, chips[1]))
    return mismatches


def _copies(sizes: Mapping[str, int], over: Sequence[str]) -> list[list[int]]:
    """Return the chips that hold the same part of an array, for each of its parts."""
    positions = np.arange(math.prod(sizes.values())).reshape([sizes[axis] for axis in ALL])
    order = [n for n, axis in enumerate(ALL) if axis not in over] + [n for n, axis in enumerate(ALL) if axis in over]
    return [[int(chip) for chip in row] for row in positions.transpose(order).reshape(-1, _count(sizes, over))]


def _count(sizes: Mapping[str, int], over: Sequence[str]) -> int:
    return math.prod(sizes[axis] for axis in over)


def majority(sums: Mapping[int, int]) -> tuple[tuple[int, ...], bool] | None:
    """Return (the chips, or slices, that differ from the majority, whether there is one); None if all are the same.

    Without a majority the first one's value counts as right, and all are suspects.
    """
    counts = Counter(sums.values())
    if len(counts) == 1:
        return None
    (common, most), second = counts.most_common(1)[0], counts.most_common(2)[1][1]
    is_certain = most > second
    expected = common if is_certain else next(iter(sums.values()))
    return tuple(chip for chip, value in sums.items() if value != expected), is_certain


def _suspect_chips(mismatch: Mismatch) -> itertools.chain[int]:
    """Return the chips that may be wrong."""
    return itertools.chain(mismatch.chips, () if mismatch.is_certain else mismatch.others)
