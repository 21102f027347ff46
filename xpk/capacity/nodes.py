"""What the nodes and queues of a cluster say of it. Reads only."""

from __future__ import annotations

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.capacity.provider import SliceInfo
from xpk.model import names
from xpk.model.accelerators import NODEPOOL_LABEL, find_shape
from xpk.model.errors import ConflictError, MissingToolError, NotFoundError, XpkError
from xpk.model.specs import ClusterSpec
from xpk.render import render_queues


def slice_nodes(api: ObjectApi) -> Objs:
    """Return the nodes that belong to slices, spare ones included."""
    return [node for node in api.list("Node") if NODEPOOL_LABEL in node["metadata"].get("labels", {})]


def pool_of(node: Obj) -> str:
    """Return the node pool, that is the slice, of a node."""
    return str(node["metadata"]["labels"][NODEPOOL_LABEL])


def pool_index(pool: str) -> int:
    """Return the slice's index in the name of its node pool."""
    return int(pool.rsplit("-", 1)[1])


def spec_of(name: str, nodes: Objs) -> ClusterSpec | None:
    """Read a cluster's shape back from its nodes' labels; None if they do not tell."""
    counted = [node for node in nodes if names.SPARE_LABEL not in node["metadata"]["labels"]]
    types = {node["metadata"]["labels"].get(names.TYPE_ANNOTATION) for node in counted}
    kind = types.pop() if len(types) == 1 else None
    if not kind:
        return None
    return ClusterSpec(name=name, shape=find_shape(kind), num_slices=len({pool_of(node) for node in counted}))


def advertises(node: Obj, resource: str, units: int) -> bool:
    """Tell whether a node has that much for pods; kubelet makes it allocatable after it is made its capacity."""
    return str(node["status"].get("allocatable", {}).get(resource)) == str(units)


def is_ready(node: Obj) -> bool:
    """Tell whether a node takes pods."""
    conditions = node["status"].get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def has_queues(api: ObjectApi, spec: ClusterSpec) -> bool:
    """Tell whether every object of the cluster's queues is there, with the quota of `spec`."""
    for obj in render_queues(spec):
        try:
            have = api.get(obj["kind"], obj["metadata"]["name"], obj["metadata"].get("namespace", "default"))
        except (NotFoundError, MissingToolError):
            return False
        if obj["kind"] == "ClusterQueue" and _quotas(have) != _quotas(obj):
            return False
    return True


def holders(api: ObjectApi) -> dict[str, str]:
    """Return the workload that runs on each node, by the node's name."""
    return {
        pod["spec"]["nodeName"]: pod["metadata"]["labels"][names.WORKLOAD_LABEL]
        for pod in api.list("Pod", None)
        if pod["spec"].get("nodeName")
        and names.WORKLOAD_LABEL in pod["metadata"].get("labels", {})
        and pod.get("status", {}).get("phase", "Pending") in ("Pending", "Running")
    }


def slice_info(pool: str, nodes: Objs, hosts: int, held: dict[str, str]) -> SliceInfo:
    """Return a slice; `hosts` are spread evenly over its nodes."""
    found = sorted((str(node["metadata"]["name"]) for node in nodes), key=lambda name: (len(name), name))
    each = max(1, hosts // len(found))
    return SliceInfo(
        node_pool=pool,
        hosts=tuple(name if each == 1 else f"{name}/{host}" for name in found for host in range(each)),
        workload=next((held[name] for name in found if name in held), None),
    )


def live_workloads(api: ObjectApi, name: str) -> list[str]:
    """Return the workloads that have not ended. Raises ConflictError if the cluster cannot be asked."""
    try:
        jobsets = api.list("JobSet", None)
    except MissingToolError:
        return []  # JobSet was never installed
    except XpkError as error:
        raise ConflictError(
            f"cannot see whether workloads are on cluster '{name}': {error.message}",
            hint=f"`xpk cluster delete {name} --force` removes it all the same",
        ) from error
    return [obj["metadata"]["name"] for obj in jobsets if not obj.get("status", {}).get("terminalState")]


def difference(have: ClusterSpec | None, want: ClusterSpec) -> str:
    """Return in words how a cluster that exists differs from one that is asked for."""
    if have is None:
        return "its nodes' labels do not tell which"
    parts = []
    if have.shape != want.shape:
        parts.append(f"type {have.shape.name} (asked for {want.shape.name})")
    if have.num_slices != want.num_slices:
        parts.append(f"{have.num_slices} slices (asked for {want.num_slices})")
    return ", ".join(parts)


def _quotas(queue: Obj) -> dict[str, str]:
    """Return a ClusterQueue's quotas by flavor and resource, as text: servers turn numbers into quantities."""
    return {
        f"{flavor['name']}/{entry['name']}": str(entry["nominalQuota"])
        for group in queue["spec"].get("resourceGroups", [])
        for flavor in group["flavors"]
        for entry in flavor["resources"]
    }
