"""Chips of one slice are neighbors on fsdp and tp, for all ways to identify their slice."""

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
from trainer.parallel.mesh import arrange, group_by_slice, slice_of


@dataclasses.dataclass(frozen=True)
class Chip:
    """The attributes of a JAX device that a mesh uses."""

    id: int
    process_index: int
    platform: str
    slice_index: int = 0
    device_kind: str = "TPU v5 lite"
    coords: tuple[int, int, int] = (0, 0, 0)
    core_on_chip: int = 0


def emulated(num_slices: int, hosts: int, chips: int) -> list[Chip]:
    """Return CPU devices, which all report slice 0."""
    total = num_slices * hosts * chips
    return [Chip(n, n // chips, "cpu") for n in range(total)]


def one_process(num_slices: int, hosts: int, chips: int) -> list[Chip]:
    """Return the CPU devices of a test that emulates all hosts."""
    return [Chip(n, 0, "cpu") for n in range(num_slices * hosts * chips)]


def tpus(num_slices: int, hosts: int, chips: int) -> list[Chip]:
    """Return v5e chips like a topology description, in no mesh's order."""
    side = math.isqrt(hosts * chips)
    places = itertools.product(range(num_slices), range(hosts * chips // side), range(side))
    made = [Chip(n, n // chips, "tpu", slice_index, coords=(x, y, 0)) for n, (slice_index, y, x) in enumerate(places)]
    return made[::-1]


def sizes(num_slices: int, hosts: int, chips: int, *settings: str) -> layout.Layout:
    return layout.layout(config.load("tiny", settings), layout.Chips(num_slices, hosts, chips))


def owner(chip: Chip, devices: Sequence[Chip], num_slices: int) -> int:
    item = len(devices) // num_slices
    return chip.slice_index if chip.platform == "tpu" else chip.id // item


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
def test_fsdp_and_tp_stay_within_a_slice(
    make: Callable[[int, int, int], list[Chip]], num_slices: int, settings: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    devices = make(num_slices, 4, 4)
    target = sizes(num_slices, 4, 4, *settings)
    placed = arrange(target, devices, 4)
    assert placed.shape == shape
    assert {chip.id for chip in placed.flat} == {chip.id for chip in devices}
    of = np.vectorize(lambda chip: owner(chip, devices, num_slices))(placed)
    assert (of == of[:, :, :1, :1]).all()
    # Neighbors on dp and stage share a slice as far as they fit in it, and the rest differ by one slice.
    item = (target.dp // target.dp_slices, target.stages // target.stage_slices)
    grid = of[:: item[0], :: item[1], 0, 0]
    assert sorted(grid.flat) == list(range(num_slices))
    np.testing.assert_array_equal(np.repeat(np.repeat(grid, item[0], 0), item[1], 1), of[:, :, 0, 0])


def test_slices_of_unequal_size_are_rejected() -> None:
    with pytest.raises(ChipsError, match="slices have different numbers of devices: 16, 8, expected 2 equal slices"):
        group_by_slice(tpus(2, 4, 4)[8:], 2, 4)
    with pytest.raises(ChipsError, match="3 equal slices"):
        group_by_slice(emulated(2, 3, 1), 3, 3)


def test_devices_are_assigned_to_slices() -> None:
    assert [slice_of(chip, 2) for chip in emulated(2, 2, 1)] == [0, 0, 1, 1]
    assert sorted(slice_of(chip, 2) for chip in tpus(2, 4, 1)) == [0, 0, 0, 0, 1, 1, 1, 1]


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 4))
def test_stages_and_replicas_cover_the_slices(num_slices: int, stages: int, more: int) -> None:
    made = config.load("tiny", [f"mesh.stages={stages}"])
    result = layout.layout(made, layout.Chips(num_slices, more, 64))
    assert result.dp_slices * result.stage_slices == num_slices
    assert stages % result.stage_slices == 0 and result.dp % result.dp_slices == 0
