"""Accelerator types and the shape of a slice of each. Data in `accelerators.yaml`, arithmetic here."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml

from xpk.model.errors import UsageError
from xpk.model.yaml_loader import LOADER

NODEPOOL_LABEL = "cloud.google.com/gke-nodepool"
ACCELERATOR_LABEL, TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
SLICE_TOPOLOGY_ANNOTATION = "cloud.google.com/gke-tpu-slice-topology"  # of pods that use a part of a slice, or several
CHIP_RESOURCES = ("google.com/tpu", "nvidia.com/gpu")  # resource names of pod requests
_CUBE = 4  # chips along each side of the cube that v4, v5p and later pods are wired from
_CPU_NAME = re.compile(r"(?P<machine>.+)-(?P<hosts>[1-9]\d*)")
_MAX_CPU_HOSTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceShape:
    """One slice of an accelerator type: `hosts` machines with `chips_per_host` chips each."""

    name: str  # accelerator type
    family: str  # family of the type, such as v5p
    kind: Literal["tpu", "gpu", "cpu"]  # kind of accelerator
    topology: str | None  # chips along each axis, such as 4x4; null if it has none
    chips: int  # chips in a slice
    hosts: int  # hosts in a slice
    chips_per_host: int  # chips of each host
    cores_per_chip: int  # cores of each chip
    machine_type: str  # machine type of a host on Google Cloud
    resource: str  # Kubernetes resource that a host's pod requests
    resource_per_host: int  # requested amount of it
    node_labels: Mapping[str, str] = field(hash=False)  # labels of the nodes of a slice
    hbm_gib: float | None  # memory of a chip; null if unknown
    peak_bf16: float | None  # FLOP/s of a chip in bfloat16; null if not published
    peak_int8: float | None  # OP/s of a chip in int8; null if not published
    other_names: tuple[str, ...] = ()  # other names that commands accept

    @property
    def units(self) -> int:
        """Return a slice's amount of `resource`."""
        return self.hosts * self.resource_per_host

    @property
    def accelerator(self) -> str:
        """Return GKE's name of its nodes' accelerator, "" if they have none."""
        return next((value for label, value in self.node_labels.items() if label.endswith("accelerator")), "")


def find_shape(name: str) -> SliceShape:
    """Return the shape of a type by any of its names. Raises UsageError that names the closest ones."""
    shapes = _by_name()
    shape = shapes.get(name) or _cpu_shape(name)
    if shape is None:
        close = _closest(name, list(shapes))
        hint = f"the closest are {', '.join(close)}" if close else "`xpk accelerator list` shows all types"
        raise UsageError(f"unknown accelerator type '{name}'", hint=hint)
    return shape


def units_of(name: str, resource: str) -> int:
    """Return the units of a resource in a slice; 1 if the name of a flavor is not an accelerator type."""
    try:
        shape = find_shape(name)
    except UsageError:
        return 1
    return shape.units if shape.resource == resource else 1


def type_of_nodes(labels: Mapping[str, str]) -> str:
    """Return the slice type of nodes with these labels, "" if the labels do not identify one."""
    key = (labels.get(ACCELERATOR_LABEL), labels.get(TOPOLOGY_LABEL))
    return _by_nodes().get(key, labels.get("cloud.google.com/gke-accelerator", ""))


def _closest(name: str, names: list[str]) -> list[str]:
    """Return up to five names: of the same family by size, else of the same prefix or a similar spelling."""
    family, _, size = name.rpartition("-")
    if size.isdecimal():
        sizes = {int(rest): other for other in names if (rest := other.removeprefix(f"{family}-")).isdecimal()}
        if sizes:
            return [sizes[near] for near in sorted(sizes, key=lambda cores: (abs(cores - int(size)), cores))[:5]]
    start = [other for other in names if name and other.startswith(name)]
    return start[:5] or difflib.get_close_matches(name, names, n=5, cutoff=0.6)


@cache
def all_shapes() -> tuple[SliceShape, ...]:
    """Return every type once, TPUs first, each family by size. CPU types are listed with one host."""
    table = _table()
    shapes: list[SliceShape] = []
    for family, row in table["tpu"].items():
        shapes += _tpu_shapes(family, row)
    for family, row in table["gpu"].items():
        shapes += [_gpu_shape(family, row, int(count)) for count in row["machines"]]
    shapes += [shape for machine in table["cpu"] if (shape := _cpu_shape(f"{machine}-1"))]
    return tuple(shapes)


@cache
def _table() -> dict[str, dict[str, dict[str, Any]]]:
    text = resources.files("xpk.model").joinpath("accelerators.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, dict[str, Any]]] = yaml.load(text, Loader=LOADER)  # noqa: S506  # a safe loader
    return loaded


@cache
def _by_name() -> dict[str, SliceShape]:
    return {name: shape for shape in all_shapes() for name in (shape.name, *shape.other_names)}


@cache
def _by_nodes() -> dict[tuple[str | None, str | None], str]:
    types: dict[tuple[str | None, str | None], str] = {}
    for shape in all_shapes():
        if shape.kind == "tpu":
            first, second = shape.node_labels.values()
            types.setdefault((first, second), shape.name)
    return types


def _tpu_shapes(family: str, row: Mapping[str, Any]) -> Iterator[SliceShape]:
    """Yield one shape per topology; the first topology with a number of cores takes the short name."""
    used_names: set[int] = set()
    for topology in _topologies(row):
        chips = math.prod(_sides(topology))
        cores = chips * row["cores"]
        short_names = [str(cores)] if cores not in used_names else []
        used_names.add(cores)
        prefixes = [family, *row.get("aliases", [])]
        name, *others = [f"{prefix}-{suffix}" for prefix in prefixes for suffix in [*short_names, topology]]
        per_host = 1 if chips == 1 else 4
        yield SliceShape(
            name=name,
            other_names=tuple(others),
            family=family,
            kind="tpu",
            topology=topology,
            chips=chips,
            hosts=chips // per_host,
            chips_per_host=per_host,
            cores_per_chip=row["cores"],
            machine_type=f"{row['machine']}-{per_host}t",
            resource="google.com/tpu",
            resource_per_host=per_host,
            node_labels={
                ACCELERATOR_LABEL: row["accelerator"],
                TOPOLOGY_LABEL: topology,
            },
            hbm_gib=row["hbm_gib"],
            peak_bf16=row["peak_bf16"],
            peak_int8=row["peak_int8"],
        )


def _topologies(row: Mapping[str, Any]) -> list[str]:
    """Return the topologies of a family, smallest first; of equal ones, the most cubic first."""
    topologies = {tuple(_sides(topology)) for topology in row["topologies"]}
    topologies.update(_boxes(row["cubes"], ordered=row["ordered"]) if "cubes" in row else ())
    ordered = sorted(topologies, key=lambda sides: (math.prod(sides), max(sides), list(sides)))
    return ["x".join(map(str, sides)) for sides in ordered]


def _boxes(max_cubes: int, *, ordered: bool) -> Iterator[tuple[int, ...]]:
    """Yield the boxes, in chips, of at most `max_cubes` cubes."""
    for a in range(1, max_cubes + 1):
        for b in range(a if ordered else 1, max_cubes // a + 1):
            for c in range(b if ordered else 1, max_cubes // (a * b) + 1):
                yield a * _CUBE, b * _CUBE, c * _CUBE


def _sides(topology: str) -> list[int]:
    return [int(side) for side in topology.split("x")]


def _gpu_shape(family: str, row: Mapping[str, Any], count: int) -> SliceShape:
    return SliceShape(
        name=f"{family}-{count}",
        family=family,
        kind="gpu",
        topology=None,
        chips=count,
        hosts=1,
        chips_per_host=count,
        cores_per_chip=1,
        machine_type=row["machines"][count],
        resource="nvidia.com/gpu",
        resource_per_host=count,
        node_labels={"cloud.google.com/gke-accelerator": row["accelerator"]},
        hbm_gib=row["hbm_gib"],
        peak_bf16=row["peak_bf16"],
        peak_int8=row["peak_int8"],
    )


def _cpu_shape(name: str) -> SliceShape | None:
    """Return the shape of `<machine>-<hosts>`, or None for other names."""
    match = _CPU_NAME.fullmatch(name)
    row = _table()["cpu"].get(match["machine"]) if match else None
    if match is None or row is None or int(match["hosts"]) > _MAX_CPU_HOSTS:
        return None
    hosts = int(match["hosts"])
    return SliceShape(
        name=name,
        family=match["machine"],
        kind="cpu",
        topology=None,
        chips=hosts,
        hosts=hosts,
        chips_per_host=1,
        cores_per_chip=row["vcpus"],
        machine_type=match["machine"],
        resource="cpu",
        resource_per_host=row["vcpus"],
        node_labels={"node.kubernetes.io/instance-type": match["machine"]},
        hbm_gib=None,
        peak_bf16=None,
        peak_int8=None,
    )
