"""Accelerators of gcluster's jobs as types, slices and hosts of this xpk.

gcluster counts chips in the names of v5p and tpu7x, and TensorCores only in `v4-8`; here, as in Google's xpk, the names
of all TPUs count TensorCores. A type and a topology together name a slice without a doubt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from xpk.cli.translate.flags import Draft
from xpk.cli.translate.words import has_variables
from xpk.model.accelerators import SliceShape, all_shapes, find_shape
from xpk.model.errors import UsageError

_TYPE, _TOPOLOGY, _SLICES, _HOSTS = "--compute-type", "--topology", "--num-slices", "--num-nodes"
_FAMILIES = {"v5e": "v5litepod", "tpu-v5e-slice": "v5litepod", "tpu-v5-lite-podslice": "v5litepod"}
_IN_CORES = ("v4-8",)  # the only short name in which gcluster counts TensorCores
_HOST_CHIPS = re.compile(r".*-(\d+)t")


def add_accelerator(draft: Draft, value_of: Mapping[str, str]) -> None:
    """Add the accelerator type and the number of slices or hosts of a job."""
    name = value_of.get(_TYPE, "")
    if not name:  # reported as a required flag
        return
    slices, hosts = value_of.get(_SLICES, "1"), value_of.get(_HOSTS, value_of.get("--vms-per-slice", "1"))
    if has_variables(name):
        draft.add("--tpu-type", name)
        draft.lose(_TYPE, "the variable must hold a type that `xpk accelerator list` shows, with its topology")
        _add_number(draft, _SLICES, slices)
    elif family := _tpu_family(name.lower()):
        _add_tpu(draft, name.lower(), family, value_of)
        _add_number(draft, _SLICES, slices)
        if _HOSTS in value_of or "--vms-per-slice" in value_of:
            draft.omit(_HOSTS, "a TPU slice has a fixed number of hosts")
    elif shapes := _gpu_shapes(name.lower()):
        _add_gpu(draft, name, shapes, slices, hosts)
    else:
        _add_cpu(draft, name, slices, hosts)


def _tpu_family(name: str) -> str:
    """Return the family of a short name (v6e-16), a machine type (ct6e-standard-4t) or an accelerator, "" if none."""
    tpus = [shape for shape in all_shapes() if shape.kind == "tpu"]
    prefix = re.sub(r"-\d+t?$", "", name)
    for shape in tpus:
        if shape.family in (name, prefix, _FAMILIES.get(name), _FAMILIES.get(prefix)) or shape.accelerator == name:
            return shape.family
        if shape.machine_type.rpartition("-")[0] == prefix:
            return shape.family
    return ""


def _add_tpu(draft: Draft, name: str, family: str, value_of: Mapping[str, str]) -> None:
    if topology := value_of.get(_TOPOLOGY):
        kind = f"{family}-{topology}"
        _add_type(draft, _TOPOLOGY, kind if has_variables(topology) else kind.lower())
        return
    machine, size = _HOST_CHIPS.fullmatch(name), name.rpartition("-")[2]
    if machine or not size.isdecimal():
        draft.omit(_TYPE, "without a topology, the type is that of the cluster's slices")
        return
    cores_per_chip = next(shape.cores_per_chip for shape in all_shapes() if shape.family == family)
    cores = int(size) * (1 if name in _IN_CORES else cores_per_chip)
    if _add_type(draft, _TYPE, f"{family}-{cores}") and cores != int(size):
        draft.omit(
            _TYPE, f"gcluster counts chips in {name}; here types count TensorCores, and {size} chips have {cores}"
        )


def _gpu_shapes(name: str) -> list[SliceShape]:
    """Return the GPU types of a type's name, a machine type or an accelerator such as nvidia-l4."""
    return [
        shape
        for shape in all_shapes()
        if shape.kind == "gpu" and name in (shape.name, shape.machine_type, shape.accelerator)
    ]


def _add_gpu(draft: Draft, name: str, shapes: list[SliceShape], slices: str, hosts: str) -> None:
    if len(shapes) > 1:
        choices = ", ".join(shape.name for shape in shapes)
        draft.lose(_TYPE, f"the number of GPUs is not in '{name}': choose from {choices}")
        return
    draft.add("--tpu-type", shapes[0].name)
    if slices == "1" or hosts == "1":
        _add_number(draft, _HOSTS, hosts if slices == "1" else slices)
    elif slices.isdecimal() and hosts.isdecimal():
        _add_number(draft, _HOSTS, str(int(slices) * int(hosts)))
        draft.omit(_SLICES, "each GPU host is a slice of its own: there are no groups of hosts")
    else:
        draft.lose(_HOSTS, "pass --num-nodes with the number of all hosts")


def _add_cpu(draft: Draft, name: str, slices: str, hosts: str) -> None:
    """Add hosts without accelerators: their type has the number of hosts in its name."""
    try:
        shape = find_shape(f"{name}-{hosts if hosts.isdecimal() else 1}")
    except UsageError as error:
        draft.refuse(_TYPE, f"{error.message.replace(f'{name}-{hosts}', name)}: {error.hint}")
        return
    draft.add("--tpu-type", shape.name)
    _add_number(draft, _SLICES, slices)
    if has_variables(hosts):
        draft.lose(_HOSTS, f"the number of hosts is a part of the type: {name}-HOSTS")


def _add_type(draft: Draft, flag: str, name: str) -> bool:
    """Add a type by any of its names; an unknown one is noted with the closest ones."""
    try:
        draft.add("--tpu-type", name if has_variables(name) else find_shape(name).name)
    except UsageError as error:
        draft.refuse(flag, f"{error.message}: {error.hint}")
        return False
    return True


def _add_number(draft: Draft, flag: str, value: str) -> None:
    """Add a number unless it is 1, the default."""
    if has_variables(value) or value.isdecimal():
        draft.words += [flag, value] if value != "1" else []
    else:
        draft.lose(flag, f"expected a number, got '{value}'")
