"""Every type's arithmetic, and errors for unknown names."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk.model.accelerators import SliceShape, all_shapes, find_shape
from xpk.model.errors import UsageError

SHAPES = st.sampled_from(all_shapes())


@given(SHAPES)
def test_chips_follow_from_topology_and_hosts(shape: SliceShape) -> None:
    assert shape.chips == shape.hosts * shape.chips_per_host
    if shape.topology:
        assert shape.chips == math.prod(map(int, shape.topology.split("x")))
        assert shape.node_labels["cloud.google.com/gke-tpu-topology"] == shape.topology


@given(SHAPES)
def test_every_name_has_a_shape(shape: SliceShape) -> None:
    for name in (shape.name, *shape.other_names):
        assert find_shape(name) == shape


def test_names_are_unique() -> None:
    names = [name for shape in all_shapes() for name in (shape.name, *shape.other_names)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "topology", "hosts", "chips", "machine"),
    [
        ("v4-8", "2x2x1", 1, 4, "ct4p-hightpu-4t"),
        ("v4-128", "4x4x4", 16, 64, "ct4p-hightpu-4t"),
        ("v5litepod-1", "1x1", 1, 1, "ct5lp-hightpu-1t"),
        ("v5litepod-8", "2x4", 2, 8, "ct5lp-hightpu-4t"),
        ("v5litepod-256", "16x16", 64, 256, "ct5lp-hightpu-4t"),
        ("v5e-256", "16x16", 64, 256, "ct5lp-hightpu-4t"),
        ("v5p-8", "2x2x1", 1, 4, "ct5p-hightpu-4t"),
        ("v5p-12288", "16x16x24", 1536, 6144, "ct5p-hightpu-4t"),
        ("v6e-16", "4x4", 4, 16, "ct6e-standard-4t"),
        ("tpu7x-128", "4x4x4", 16, 64, "tpu7x-standard-4t"),
        ("tpu7-8", "2x2x1", 1, 4, "tpu7-standard-4t"),
        ("h100-80gb-8", None, 1, 8, "a3-highgpu-8g"),
        ("n2-standard-32-4", None, 4, 4, "n2-standard-32"),
    ],
)
def test_known_types(name: str, topology: str | None, hosts: int, chips: int, machine: str) -> None:
    shape = find_shape(name)
    assert (shape.topology, shape.hosts, shape.chips, shape.machine_type) == (topology, hosts, chips, machine)


def test_cpu_hosts_are_counted_by_their_name() -> None:
    shape = find_shape("n2-standard-4-3")
    assert (shape.hosts, shape.resource, shape.resource_per_host) == (3, "cpu", 4)


@pytest.mark.parametrize(
    "name", ["v5lite-256", "v5litepod-257", "v9-8", "", "n2-standard-32-0", "n2-standard-32-99999"]
)
def test_errors_for_unknown_types_suggest_similar_names_or_list_all(name: str) -> None:
    with pytest.raises(UsageError, match="unknown accelerator type") as caught:
        find_shape(name)
    assert "closest" in caught.value.hint or "accelerator list" in caught.value.hint


def test_a_dissimilar_name_gets_the_full_list() -> None:
    with pytest.raises(UsageError) as caught:
        find_shape("v9")
    assert caught.value.hint == "`xpk accelerator list` shows all types"


@pytest.mark.parametrize(("name", "closest"), [("v5litepod-255", "v5litepod-256"), ("v5p-99", "v5p-128")])
def test_the_closest_name_is_offered_first(name: str, closest: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_shape(name)
    assert caught.value.hint.startswith(f"the closest are {closest}")
