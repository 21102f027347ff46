"""Changes from the observed to the desired state, each with its prerequisites. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from xpk.capacity.gke.observed.state import GOING, LOST, Observed, is_about
from xpk.capacity.gke.request.options import region_of
from xpk.model import names
from xpk.model.accelerators import SliceShape
from xpk.model.errors import ConflictError

Dict = dict[str, Any]
Kind = Literal[
    "create-policy", "create-network", "delete-network", "create-cluster", "update-cluster", "delete-cluster",
    "create-pool", "update-pool", "delete-pool", "wait",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a plan for GKE."""

    kind: Kind  # kind of the change
    subject: str  # name of the changed resource
    body: Mapping[str, Any] = field(default_factory=dict)  # body of the API request
    after: tuple[str, ...] = ()  # keys of the changes that it waits for
    why: str = ""  # reason; may be empty

    @property
    def key(self) -> str:
        """Return the key by which other changes wait for this one."""
        return f"{self.kind}:{self.subject}"


def cluster_changes(have: Observed, cluster: Dict, changeable: Mapping[str, Dict]) -> list[Change]:
    """Return the changes to a cluster, except its node pools. Raises ConflictError if it cannot be changed."""
    name = cluster["name"]
    if have.cluster is None:
        return [Change("create-cluster", name, cluster)]
    status = have.cluster.get("status", "RUNNING")
    if status == LOST:
        raise ConflictError(
            f"cluster '{name}' is broken: {have.cluster.get('status_message') or 'GKE gave no reason'}",
            hint=f"`xpk cluster delete {name} --provider gke --force`, then the same command again",
        )
    wrong = _fixed_differences(have.cluster, cluster)
    if wrong:
        raise ConflictError(
            f"cluster '{name}' exists in another shape: {'; '.join(wrong)}",
            hint=f"omit these options, choose another name, or run `xpk cluster delete {name}` first",
        )
    changes: list[Change] = []
    if status == "PROVISIONING":
        operation = next((running for running in have.operations if running["operation_type"] == "CREATE_CLUSTER"), {})
        changes.append(Change("wait", name, operation, why="it is being created"))
    elif status == GOING:
        operation = next((running for running in have.operations if running["operation_type"] == "DELETE_CLUSTER"), {})
        changes.append(Change("wait", name, operation, why="it is being deleted"))
        return [*changes, Change("create-cluster", name, cluster, after=(changes[0].key,))]
    for part, desired in changeable.items():
        if not covers(have.cluster.get(part), desired):
            before = (changes[-1].key,) if changes else ()  # one at a time: GKE rejects concurrent updates of a cluster
            changes.append(Change("update-cluster", part, {"name": name, part: desired}, before))
    return changes


def pool_changes(
    have: Observed, name: str, shape: SliceShape, bodies: Iterable[Dict], *, after: Sequence[str]
) -> list[Change]:
    """Return the changes that add slices; `bodies` are the missing node pools in the order of their names.

    Pools that are being created are waited for, failed ones are recreated; pools of other types are left alone.
    """
    changes: list[Change] = []
    for pool_name, pool in have.slices(shape).items():
        status = pool.get("status", "RUNNING")
        if status == "PROVISIONING":
            operation = next((running for running in have.operations if is_about(running, name, pool_name)), {})
            changes.append(Change("wait", pool_name, operation, tuple(after), "it is being created"))
    for body in bodies:
        before = list(after)
        old = have.pools.get(body["name"])
        if old is not None and old.get("status") == GOING:
            operation = next((running for running in have.operations if is_about(running, name, body["name"])), {})
            waiting = Change("wait", body["name"], operation, tuple(after), "it is being deleted")
            changes.append(waiting)
            before.append(waiting.key)
        elif old is not None:
            why = f"it failed: {old.get('status_message') or 'GKE gave no reason'}"
            deletion = Change("delete-pool", body["name"], {}, tuple(after), why)
            changes.append(deletion)
            before.append(deletion.key)
        changes.append(Change("create-pool", body["name"], body, tuple(before)))
    return changes


def missing_names(have: Observed, name: str, shape: SliceShape, num_slices: int) -> list[str]:
    """Return the names of node pools to create: those of broken ones first, then the first unused ones."""
    slices = have.slices(shape)
    whole = [pool_name for pool_name, pool in slices.items() if pool.get("status", "RUNNING") not in (LOST, GOING)]
    again = sorted(set(slices) - set(whole), key=_order)
    free = (each for index in itertools.count() if (each := names.node_pool_name(name, index)) not in have.pools)
    missing = max(0, num_slices - len(whole))
    return [*again, *itertools.islice(free, max(0, missing - len(again)))][:missing]


def covers(have: Any, desired: Any) -> bool:
    """Return whether `have` contains everything in `desired`. False and absent are the same."""
    if isinstance(desired, Mapping):
        fields = have if isinstance(have, Mapping) else {}
        return all(covers(fields.get(key), value) for key, value in desired.items())
    if isinstance(desired, list):
        items = have if isinstance(have, list) else []
        return all(any(covers(candidate, item) for candidate in items) for item in desired)
    if desired in (False, 0, "", None):
        return have in (False, 0, "0", "", None)
    return have is not None and str(have).lower() == str(desired).lower()


def _fixed_differences(have: Mapping[str, Any], desired: Mapping[str, Any]) -> list[str]:
    """Return differences in fields of a cluster that can never be changed, as text."""
    differences = []
    zone, place = str(desired["locations"][0]), str(have.get("location"))
    if place not in (zone, region_of(zone)):  # node pools may be in any zone of the region
        differences.append(f"it is in {place} (requested {zone})")
    for part, label in (("network", "network"), ("subnetwork", "subnetwork")):
        if desired.get(part) and not covers(have.get(part), desired[part]):
            differences.append(f"{label} {_text(have.get(part))} (requested {_text(desired[part])})")
    private = desired.get("private_cluster_config", {}).get("enable_private_nodes")
    if private and not (
        have.get("private_cluster_config", {}).get("enable_private_nodes")
        or have.get("network_config", {}).get("default_enable_private_nodes")
    ):
        differences.append("its nodes are not private")
    return differences


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _order(name: str) -> tuple[int, str]:
    last = name.rpartition("-")[2]
    return (int(last) if last.isdecimal() else 0, name)
