"""Setup of a Kubernetes cluster for workloads: queues, priorities, and a record of how workloads run on it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.quantities import quantity
from xpk.capacity.apply import apply_all
from xpk.capacity.nodes.inventory import has_queues, own_objects, pools_of, queued_types, shape_of, slice_nodes
from xpk.capacity.queues import provisioning
from xpk.capacity.queues.foreign import Judgment, judge, unlabeled
from xpk.capacity.queues.reading import maker_of, promised
from xpk.model.accelerators import SliceShape
from xpk.model.errors import MissingToolError, NameTaken, NotFoundError, XpkError
from xpk.model.specs import ClusterSpec, Target
from xpk.render import render_priorities, render_queues

_RECORD = "xpk-cluster"  # ConfigMap that records how workloads run on a cluster

_TAKE_OVER = "take-over"  # its key that allows changing quotas that another tool manages


class WorkloadOptions(Protocol):
    """Options for how workloads run on a cluster; None keeps the recorded value."""

    @property
    def emulated(self) -> bool:
        """Return whether the nodes have no accelerators."""

    @property
    def output_root(self) -> str | None:
        """A bucket, or a folder that all nodes share."""

    @property
    def trainer_image(self) -> str | None:
        """The bundled trainer's image, as the nodes can pull it."""

    @property
    def fenced(self) -> bool | None:
        """Return whether a node that stays unreachable is certainly dead."""

    @property
    def take_over(self) -> bool:
        """Return whether quotas that another tool manages are changed, from now on."""


def whole_slices(nodes: Objs) -> dict[SliceShape, int]:
    """Return the number of slices of each type with all their chips."""
    pools = pools_of(nodes).values()
    shapes = [shape for members in pools if (shape := shape_of(members[0])) and _chips(members, shape) >= shape.units]
    return dict(sorted(Counter(shapes).items(), key=lambda item: item[0].name))


def specs_of(name: str, nodes: Objs) -> list[ClusterSpec]:
    """Return the specs of a cluster's whole slices, by type."""
    queued = queued_types(nodes)
    return [
        ClusterSpec(name=name, shape=shape, num_slices=count, queued=shape in queued)
        for shape, count in whole_slices(nodes).items()
    ]


def record(api: ObjectApi, specs: Sequence[ClusterSpec], options: WorkloadOptions, *, region: str | None = None) -> Obj:
    """Return the ConfigMap that records how workloads run; options that are not given keep their recorded values.

    `region`: of a GKE cluster; otherwise, its nodes tell whether it is one.
    """
    before = recorded(api) or {}
    gke = region is not None
    if not gke:
        gke = any(str(node["spec"].get("providerID", "")).startswith("gce://") for node in slice_nodes(api))
    tpus = all(spec.shape.kind == "tpu" for spec in specs)

    shared = [spec.shape.name for spec in specs if spec.sub_slicing]
    cubes = [spec.shape.name for spec in specs if spec.super_slicing]

    def kept(key: str, value: str | None) -> str:
        return before.get(key, "") if value is None else value

    fenced = None if options.fenced is None else str(options.fenced).lower()
    return config_map(
        {
            "accelerator-type": ",".join(spec.shape.name for spec in specs),
            "emulated": str(options.emulated).lower(),
            # Only GKE's webhook gives TPU pods MEGASCALE_* and TPU_WORKER_*.
            "sets-slice-environment": str(not (gke and tpus)).lower(),
            "output-root": kept("output-root", options.output_root and options.output_root.rstrip("/")),
            "trainer-image": kept("trainer-image", options.trainer_image),
            "fenced": kept("fenced", fenced) or "false",
            **({"region": region} if region else {}),
            **({_TAKE_OVER: "true"} if options.take_over or before.get(_TAKE_OVER) else {}),
            **({"sub-slicing": shared[0]} if shared else {}),
            **({"super-slicing": cubes[0]} if cubes else {}),
            **_bought(specs),
        }
    )


def recorded(api: ObjectApi) -> dict[str, str] | None:
    """Return the record of how workloads run on a cluster, None if it has none."""
    try:
        data: dict[str, str] = api.get("ConfigMap", _RECORD).get("data", {})
    except NotFoundError:
        return None
    return data


def target_of(api: ObjectApi, hint: str) -> Target:
    """Return the target of a cluster. Raises NotFoundError with `hint` if it has no record."""
    data = recorded(api)
    if data is None:
        raise NotFoundError("the cluster was not adapted: it has no record of how workloads run on it", hint=hint)
    for key in ("output-root", "emulated", "sets-slice-environment"):
        if key not in data:
            raise XpkError(f"ConfigMap {_RECORD} in namespace default is damaged: it has no '{key}'", hint=hint)
    output = data["output-root"]
    return Target(
        emulated=data["emulated"] == "true",
        sets_slice_environment=data["sets-slice-environment"] == "true",
        output_root=output,
        shared_folder=output if output.startswith("/") else None,
        fenced=data.get("fenced") == "true",
        trainer_image=data.get("trainer-image") or None,
        region=data.get("region"),
        sub_slicing=data.get("sub-slicing"),
        super_slicing=data.get("super-slicing"),
        capacities={kind: tuple(items) for kind, items in _mapping(data, "capacities", list).items()},
        autoprovisioned=autoprovisioned_in(data),
    )


def autoprovisioned_of(specs: Sequence[ClusterSpec]) -> dict[str, str]:
    """Return the types that GKE autoprovisions, with the requested capacity."""
    return {spec.shape.name: spec.provisions for spec in specs if spec.max_slices is not None}


def autoprovisioned_in(data: Mapping[str, str] | None) -> dict[str, str]:
    """Return the types that GKE autoprovisions, each with its capacity, from a cluster's record."""
    return _mapping(data or {}, "autoprovisioned", str)


def _mapping(data: Mapping[str, str], key: str, kind: type[Any]) -> dict[str, Any]:
    """Return a value of a cluster's record that is JSON. Raises XpkError if it is damaged, such as by hand."""
    try:
        value = json.loads(data.get(key, "{}"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not all(isinstance(item, kind) for item in value.values()):
        raise XpkError(
            f"ConfigMap {_RECORD} in namespace default is damaged: invalid '{key}'",
            hint="`xpk cluster adapt` with the cluster's name writes it again",
        )
    return value


def config_map(data: dict[str, str]) -> Obj:
    """Return the ConfigMap with a cluster's record."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _RECORD, "namespace": "default", "labels": {"app.kubernetes.io/managed-by": "xpk"}},
        "data": data,
    }


def apply_queues(api: ObjectApi, specs: Sequence[ClusterSpec], *, take_over: bool = False) -> None:
    """Apply a cluster's queues; other queues keep their quota.

    `take_over`: change fields that another tool manages.
    """
    apply_all(api, _queues(api, specs), force=take_over)


def judge_queues(
    api: ObjectApi, specs: Sequence[ClusterSpec], *, take_over: bool = False, ends: bool = False
) -> Judgment:
    """Return how a cluster's queues would change those of others, and whether that is allowed; change nothing."""
    try:
        objects = _queues(api, specs)
    except MissingToolError:  # without Kueue there are no other queues
        return Judgment()
    return judge(api, objects, take_over=take_over or _took_over(api), ends=ends)


def _took_over(api: ObjectApi) -> bool:
    """Return whether the user has allowed xpk to change quotas that other tools manage."""
    return (recorded(api) or {}).get(_TAKE_OVER) == "true"


def _queues(api: ObjectApi, specs: Sequence[ClusterSpec]) -> Objs:
    return unlabeled(api, own_objects(api, render_queues(*specs, promised=promised(api))))


def is_set_up(api: ObjectApi, *specs: ClusterSpec) -> bool:
    """Return whether everything that `set_up` creates exists."""
    return has_queues(api, *specs) and provisioning.is_settled(api) and not _lacking_priorities(api)


def set_up(api: ObjectApi, specs: Sequence[ClusterSpec], *, take_over: bool = False) -> None:
    """Create a cluster's queues, and the priority classes for pods of Google's xpk."""
    apply_queues(api, specs, take_over=take_over or _took_over(api))
    provisioning.settle(api)
    for obj in _lacking_priorities(api):
        with suppress(NameTaken):  # by another client that sets the cluster up
            api.create(obj)


def remove_priorities(api: ObjectApi) -> None:
    """Delete the pod priority classes that `set_up` created."""
    class_names = {obj["metadata"]["name"] for obj in render_priorities()}
    for priority_class in api.list("PriorityClass", None):
        if priority_class["metadata"]["name"] in class_names and maker_of(priority_class) == "xpk":
            with suppress(NotFoundError):
                api.delete("PriorityClass", priority_class["metadata"]["name"])


def output_root_problems(output_root: str | None) -> list[str]:
    """Return the problems of an output root, one line each."""
    if output_root and not output_root.startswith(("gs://", "/")):
        return [f"--output-root '{output_root}' is neither gs://BUCKET/PREFIX nor an absolute path"]
    return []


def _bought(specs: Sequence[ClusterSpec]) -> dict[str, str]:
    """Return the capacity of a cloud's slices and its autoprovisioned types, as JSON."""
    capacities = {spec.shape.name: spec.capacities for spec in specs if spec.capacities}
    made = autoprovisioned_of(specs)
    return {
        **({"capacities": json.dumps(capacities)} if capacities else {}),
        **({"autoprovisioned": json.dumps(made)} if made else {}),
    }


def _lacking_priorities(api: ObjectApi) -> Objs:
    """Return the missing priority classes. One that another tool made with another value is not changed."""
    existing = {priority_class["metadata"]["name"] for priority_class in api.list("PriorityClass", None)}
    return [obj for obj in render_priorities() if obj["metadata"]["name"] not in existing]


def _chips(nodes: Objs, shape: SliceShape) -> int:
    return sum(int(quantity(node["status"].get("allocatable", {}).get(shape.resource, 0))) for node in nodes)
