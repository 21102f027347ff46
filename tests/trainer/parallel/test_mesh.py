"""Chips of one slice are neighbors on fsdp and tp, whatever tells which slice a chip is of."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer import config
from trainer.errors import ChipsError
from trainer.parallel import layout
from trainer.parallel.mesh import arrange, by_slice, slice_of


@dataclasses.dataclass(frozen=True)
class Chip:
    """As much of a JAX device as a mesh looks at."""

    id: int
    process_index: int
    platform: str
    slice_index: int = 0
    device_kind: str = "TPU v5 lite"
    coords: tuple[int, int, int] = (0, 0, 0)
    core_on_chip: int = 0


def emulated(num_slices: int, hosts: int, chips: int) -> list[Chip]:
    """Return CPU devices: all say slice 0."""
    total = num_slices * hosts * chips
    return [Chip(n, n // chips, "cpu") for n in range(total)]


def one_process(num_slices: int, hosts: int, chips: int) -> list[Chip]:
    """Return the CPU devices of a test that plays all hosts."""
    return [Chip(n, 0, "cpu") for n in range(num_slices * hosts * chips)]


def tpus(num_slices: int, hosts: int, chips: int) -> list[Chip]:
    """Return v5e chips as a topology description has them, in the order of no mesh."""
    side = math.isqrt(hosts * chips)
    places = itertools.product(range(num_slices), range(hosts * chips // side), range(side))
    made = [Chip(n, n // chips, "tpu", slice_index, coords=(x, y, 0)) for n, (slice_index, y, x) in enumerate(places)]
    return made[::-1]


def sizes(num_slices: int, hosts: int, chips: int, *settings: str) -> layout.Layout:
    return layout.layout(config.load("tiny", settings), layout.Chips(num_slices, hosts, chips))


def owner(chip: Chip, devices: Sequence[Chip], num_slices: int) -> int:
    each = len(devices) // num_slices
    return chip.slice_index if chip.platform == "tpu" else chip.id // each


@pytest.mark.parametrize("make", [emulated, one_process, tpus])
@pytest.mark.parametrize(
    ("num_slices", "settings", "shape"),
    [
        (1, (), (1, 1, 16, 1)),
        (2, ("mesh.tp=4",), (2, 1, 4, 4)),
        (2, ("mesh.dp=4", "mesh.tp=2"), (4, 1, 4, 2)),
        (2, ("mesh.stages=2",), (1, 2, 16, 1)),
        (2, ("mesh.stages=2", "mesh.dp=2"), (2, 2, 8, 1)),
        (2, ("mesh.stages=4", "mesh.dp=2"), (2, 4, 4, 1)),
        (4, ("mesh.stages=2", "mesh.tp=4"), (2, 2, 4, 4)),
        (3, ("mesh.stages=2", "mesh.tp=2"), (3, 2, 4, 2)),
    ],
)
def test_a_slice_is_never_torn(
    make: Callable[[int, int, int], list[Chip]], num_slices: int, settings: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    devices = make(num_slices, 4, 4)
    wanted = sizes(num_slices, 4, 4, *settings)
    placed = arrange(wanted, devices, 4)
    assert placed.shape == shape
    assert {chip.id for chip in placed.flat} == {chip.id for chip in devices}
    of = np.vectorize(lambda chip: owner(chip, devices, num_slices))(placed)
    assert (of == of[:, :, :1, :1]).all()
    # Neighbors on dp and stage share a slice as far as they fit in it, and the rest is one step a slice.
    each = (wanted.dp // wanted.dp_slices, wanted.stages // wanted.stage_slices)
    grid = of[:: each[0], :: each[1], 0, 0]
    assert sorted(grid.flat) == list(range(num_slices))
    np.testing.assert_array_equal(np.repeat(np.repeat(grid, each[0], 0), each[1], 1), of[:, :, 0, 0])


def test_slices_of_unequal_size_are_refused() -> None:
    with pytest.raises(ChipsError, match="slices have different numbers of devices: 16, 8, expected 2 equal slices"):
        by_slice(tpus(2, 4, 4)[8:], 2, 4)
    with pytest.raises(ChipsError, match="3 equal slices"):
        by_slice(emulated(2, 3, 1), 3, 3)


def test_tpus_know_their_slice_and_others_their_host() -> None:
    assert [slice_of(chip, 2) for chip in emulated(2, 2, 1)] == [0, 0, 1, 1]
    assert sorted(slice_of(chip, 2) for chip in tpus(2, 4, 1)) == [0, 0, 0, 0, 1, 1, 1, 1]


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 4))
def test_stages_and_replicas_cover_the_slices(num_slices: int, stages: int, more: int) -> None:
    made = config.load("tiny", [f"mesh.stages={stages}"])
    found = layout.layout(made, layout.Chips(num_slices, more, 64))
    assert found.dp_slices * found.stage_slices == num_slices
    assert stages % found.stage_slices == 0 and found.dp % found.dp_slices == 0
