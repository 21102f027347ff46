"""Groups of chips over which a compiled program reduces or gathers, read from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Chips = npt.NDArray[np.int64]
_LINE = re.compile(r"= (?P<types>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\(")
_SHAPE = re.compile(r"([a-z]+\d+)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One instruction of a program."""

    kind: str
    dtype: str
    sizes: tuple[int, ...]  # elements of each resulting array
    groups: tuple[tuple[int, ...], ...]

    @property
    def bytes(self) -> int:
        """Bytes of the result on one chip."""
        return sum(self.sizes) * int(re.findall(r"\d+", self.dtype)[0]) // 8

    def crosses(self, slices: Sequence[Sequence[int]]) -> bool:
        """Return whether a group has chips of different slices."""
        return any(not any(set(group) <= set(chips) for chips in slices) for group in self.groups)


def collectives(hlo: str) -> list[Collective]:
    """Return all collectives of a program; those in loops once."""
    outcome = []
    for line in hlo.splitlines():
        if match := _LINE.search(line):
            shapes = _SHAPE.findall(match["types"])
            # The CPU computes sums of bfloat16 in float32, which the name of the addition shows.
            dtype = "bf16" if "_promoted" in line else shapes[0][0]
            sizes = tuple(math.prod(int(side) for side in shape.split(",") if side) for _, shape in shapes)
            outcome.append(Collective(match["kind"], dtype, sizes, _groups(line)))
    return outcome


def _groups(line: str) -> tuple[tuple[int, ...], ...]:
    """Parse replica groups in any of the three formats that XLA prints."""
    if listed := re.search(r"(?:replica_groups|source_target_pairs)=\{(\{.*?\})\}", line):
        return tuple(tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", listed[1]))
    if named := re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.*?)\))? \{(.*?)\}", line):
        axes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
        ids = _iota(named[2]) if named[2] else np.arange(math.prod(axes.values()))
        kept, chosen = list(axes), re.findall(r"'(\w+)'", named[3])
        order = [kept.index(name) for name in kept if name not in chosen] + [kept.index(name) for name in chosen]
        size = math.prod(axes[name] for name in chosen)
        return _rows(ids.reshape(list(axes.values())).transpose(order).reshape(-1, size))
    plain = re.search(r"replica_groups=(\[[^ ]*\]<=\[[^ ]*?\](?:T\([\d,]+\))?)", line)
    assert plain is not None, line
    shape, _, rest = plain[1].partition("<=")
    return _rows(_iota(rest).reshape([int(side) for side in shape[1:-1].split(",")]))


def _iota(text: str) -> Chips:
    match = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    assert match is not None, text
    shape = [int(side) for side in match[1].split(",")]
    ids: Chips = np.arange(math.prod(shape)).reshape(shape)
    return ids.transpose([int(axis) for axis in match[2].split(",")]) if match[2] else ids


def _rows(ids: Chips) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(chip) for chip in row) for row in ids)
