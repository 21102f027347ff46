"""Quotas of ClusterQueues, created by any tool."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.quantities import quantity
from xpk.model import names
from xpk.model.accelerators import ACCELERATOR_LABEL, TOPOLOGY_LABEL, find_shape, type_of_nodes
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, UsageError
from xpk.model.quotas import Allotment

Key = tuple[str, str]  # a flavor and a resource
_NUMBERED = re.compile(r"\d+x(?P<type>.+)")  # flavor names of Google's xpk: the number of slices, and their type


def allotments(cluster_queue: Obj) -> dict[Key, Allotment]:
    """Return a ClusterQueue's quota of each flavor's resources, and how much of it is reserved."""
    quotas = {
        (flavor["name"], entry["name"]): Allotment(
            nominal=quantity(entry.get("nominalQuota", 0)),
            borrowing_limit=_limit(entry, "borrowingLimit"),
            lending_limit=_limit(entry, "lendingLimit"),
        )
        for group in cluster_queue["spec"].get("resourceGroups") or []
        for flavor in group["flavors"]
        for entry in flavor.get("resources") or []
    }
    for flavor in cluster_queue.get("status", {}).get("flavorsReservation") or []:
        for entry in flavor.get("resources") or []:
            key = (flavor["name"], entry["name"])
            if key in quotas:
                quotas[key] = replace(quotas[key], used=quantity(entry.get("total", 0)))
    return quotas


def queued_flavors(cluster_queue: Obj) -> frozenset[str]:
    """Return the flavors of a ClusterQueue whose nodes are created when a ProvisioningRequest is granted."""
    return _checked_flavors(cluster_queue, names.PROVISIONING_CHECK)


def cube_flavors(cluster_queue: Obj) -> frozenset[str]:
    """Return the flavors of a ClusterQueue whose nodes are cubes, from which slices are formed."""
    return _checked_flavors(cluster_queue, names.SLICE_CHECK)


def foreign_checks(cluster_queue: Obj) -> tuple[str, ...]:
    """Return the names of the admission checks of a ClusterQueue that xpk did not create."""
    own = (names.PROVISIONING_CHECK, names.SLICE_CHECK)
    return tuple(check["name"] for check in admission_checks(cluster_queue) if check["name"] not in own)


def admission_checks(cluster_queue: Obj) -> Objs:
    """Return the admission checks of a ClusterQueue, with the flavors to which they apply."""
    checks: Objs = cluster_queue["spec"].get("admissionChecksStrategy", {}).get("admissionChecks") or []
    return checks


def _checked_flavors(cluster_queue: Obj, name: str) -> frozenset[str]:
    """Return the flavors of a ClusterQueue to which an admission check applies."""
    check = next((candidate for candidate in admission_checks(cluster_queue) if candidate["name"] == name), None)
    if check is None:
        return frozenset()
    return frozenset(check.get("onFlavors") or (flavor for flavor, _ in allotments(cluster_queue)))


def type_of(flavor: str) -> str:
    """Return the accelerator type that a flavor's name contains, "" if none."""
    match = _NUMBERED.fullmatch(flavor)
    for name in (flavor, *([match["type"]] if match else [])):
        try:
            return find_shape(name).name
        except UsageError:
            continue
    return ""


def types_of(api: ObjectApi, cluster_queues: Iterable[Obj]) -> dict[str, str]:
    """Return the accelerator type of each flavor: from its name, else its nodes' labels, else the name itself."""
    flavors = {flavor for queue in cluster_queues for flavor, _ in allotments(queue)}
    return {flavor: type_of(flavor) or _type_by_nodes(api, flavor) or flavor for flavor in sorted(flavors)}


def _type_by_nodes(api: ObjectApi, flavor: str) -> str:
    """Return the accelerator type that a flavor's labels select, "" if they select none or several."""
    try:
        labels: Mapping[str, str] = api.get("ResourceFlavor", flavor)["spec"].get("nodeLabels") or {}
        if ACCELERATOR_LABEL not in labels or TOPOLOGY_LABEL in labels:
            return type_of(type_of_nodes(labels))
        # Without a topology, as in flavors of gcluster, the existing nodes have it.
        nodes = api.list("Node", None, labels, keep=_labels_of)
    except (NotFoundError, AuthorizationError, MissingToolError):
        return ""
    types = {type_of_nodes(node["metadata"].get("labels") or {}) for node in nodes}
    return types.pop() if len(types) == 1 else ""


def _labels_of(node: Obj) -> Obj:
    """Return a node without the fields that do not tell its type."""
    meta = node.get("metadata")
    return {"metadata": {"labels": meta.get("labels")}} if isinstance(meta, dict) else node


def cohort_of(cluster_queue: Obj) -> str:
    """Return a ClusterQueue's cohort, "" if none."""
    return str(cluster_queue["spec"].get("cohortName") or "")


def members(cluster_queue: Obj, cluster_queues: Iterable[Obj]) -> list[Obj]:
    """Return the ClusterQueues that share a cohort with this one, including itself."""
    cohort = cohort_of(cluster_queue)
    return [queue for queue in cluster_queues if cohort and cohort_of(queue) == cohort] or [cluster_queue]


def _limit(entry: Obj, name: str) -> float | None:
    return None if entry.get(name) is None else quantity(entry[name])


def max_priority_of(cluster_queue: Obj) -> str | None:
    """Return the highest priority that a queue admits, None for any."""
    limit = (cluster_queue["metadata"].get("annotations") or {}).get(names.MAX_PRIORITY_ANNOTATION)
    return str(limit) if limit in names.PRIORITIES else None
