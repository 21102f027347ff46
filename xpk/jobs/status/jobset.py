"""Facts that a JobSet states, whichever tool created it: its creator, size, pods and accelerator type."""

from __future__ import annotations

import json

from xpk.api.base import Obj
from xpk.jobs.status.fields import PRIORITY_LABEL, jobs_in, label
from xpk.model import names
from xpk.model.accelerators import SLICE_TOPOLOGY_ANNOTATION, TOPOLOGY_LABEL, type_of_nodes
from xpk.model.specs import CopySpec

_MANAGED_BY = "app.kubernetes.io/managed-by"


def maker_of(jobset: Obj) -> str:
    """Return the tool that created a JobSet: "xpk", or the name of another tool, if the object has it."""
    if label(jobset, _MANAGED_BY) == "xpk" or label(jobset, names.WORKLOAD_LABEL):
        return "xpk"
    if label(jobset, names.GCLUSTER_LABEL):
        return "gcluster"
    managers = [
        str(item.get("manager", "")).removesuffix("-client-side-apply")
        for item in jobset["metadata"].get("managedFields") or []
        if item.get("subresource") != "status"
    ]
    return label(jobset, _MANAGED_BY) or next(filter(None, managers), "another tool")


def copy_spec(jobset: Obj) -> CopySpec | None:
    """Return what a JobSet states about the copies of its workload, None if it is the only one."""
    text = (jobset["metadata"].get("annotations") or {}).get(names.COPY_ANNOTATION)
    try:
        fields = json.loads(text or "")
        return CopySpec(
            run=str(fields["run"]),
            cluster=str(fields["cluster"]),
            clusters=tuple(map(str, fields["clusters"])),
            queue=str(fields["queue"]),
            move_after_seconds=float(fields["move_after_seconds"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def size_of(spec: Obj) -> tuple[int, int, int]:
    """Return the number of slices, the hosts of the largest slice, and the total number of hosts."""
    sizes = [(job.get("replicas", 1), job["template"]["spec"].get("parallelism", 1)) for job in jobs_in(spec)]
    largest = max((hosts for _, hosts in sizes), default=0)
    return sum(count for count, _ in sizes), largest, sum(count * hosts for count, hosts in sizes)


def pod_spec_of(jobset: Obj) -> Obj:
    """Return the pod spec of the first replicated job, with an empty container if there is none."""
    specs: list[Obj] = [job["template"]["spec"]["template"]["spec"] for job in jobs_in(jobset["spec"])]
    return next(iter(specs), {"containers": [{}]})


def priority_of(jobset: Obj) -> str:
    """Return the priority class of Kueue, or the one of Kubernetes that pods of other tools have: Kueue uses either."""
    return label(jobset, PRIORITY_LABEL) or str(pod_spec_of(jobset).get("priorityClassName") or "")


def type_of(jobset: Obj) -> str:
    """Return the accelerator type; of several replicated jobs, the first that one has: Pathways' head has none."""
    annotations = jobset["metadata"].get("annotations") or {}
    if kind := annotations.get(names.TYPE_ANNOTATION):
        return str(kind)
    templates = [job["template"]["spec"]["template"] for job in jobs_in(jobset["spec"])]
    return next(filter(None, map(_type_of_pods, templates)), "")


def _type_of_pods(template: Obj) -> str:
    """Return the type that a pod template selects: parts of slices have their topology in an annotation."""
    labels = template["spec"].get("nodeSelector") or {}
    topology = ((template.get("metadata") or {}).get("annotations") or {}).get(SLICE_TOPOLOGY_ANNOTATION)
    return type_of_nodes({**({TOPOLOGY_LABEL: topology} if topology else {}), **labels})
