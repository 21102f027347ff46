"""Feasibility of workloads: whether one fits into its queue's quota, and onto the usable node pools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xpk.api.base import Obj
from xpk.local import objects as o
from xpk.local.store import Transaction
from xpk.model import names

POOLS = "node pools"
Pools = Mapping[str, Sequence[Obj]]
Slices = frozenset[tuple[frozenset[tuple[str, float]], int]]  # requests of a host, and hosts, of each kind of slice


def needs_of(jobset: Obj) -> dict[str, int]:
    """Return the requests of all hosts of a JobSet, and its number of usable node pools.

    One that checks a quarantined slice needs none of those: it runs where no other may.
    """
    total: dict[str, float] = {}
    for job in jobset["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        for name, amount in o.requests(spec["template"]["spec"]).items():
            total[name] = total.get(name, 0) + amount * job["replicas"] * spec["parallelism"]
    needs = {name: int(amount) for name, amount in total.items()}
    if o.TOPOLOGY in jobset["metadata"].get("annotations", {}) and not _checks_quarantined(jobset):
        needs[POOLS] = sum(job["replicas"] for job in jobset["spec"]["replicatedJobs"])
    return needs


def _checks_quarantined(jobset: Obj) -> bool:
    """Return whether hosts of a JobSet tolerate the quarantine of their slice."""
    return any(
        toleration.get("key") == names.QUARANTINE_TAINT
        for job in jobset["spec"]["replicatedJobs"]
        for toleration in job["template"]["spec"]["template"]["spec"].get("tolerations", ())
    )


def usable_pools(tx: Transaction, flavor: str) -> dict[str, list[Obj]]:
    """Return the schedulable nodes of a flavor, by node pool."""
    flavor_obj = tx.get("ResourceFlavor", "", flavor)
    return pools_of(flavor_obj, tx.list("Node")) if flavor_obj else {}


def pools_of(flavor: Obj, nodes: Iterable[Obj]) -> dict[str, list[Obj]]:
    """Return those of `nodes` that are schedulable and have the labels of a ResourceFlavor, by node pool."""
    pools = dict[str, list[Obj]]()
    labels = flavor["spec"].get("nodeLabels", {}).items()
    for node in nodes:
        if not o.is_closed(node) and o.is_true(node, "Ready") and labels <= node["metadata"].get("labels", {}).items():
            pools.setdefault(o.label(node, "cloud.google.com/gke-nodepool"), []).append(node)
    return pools


def _hosts(node: Obj, requests: Mapping[str, float]) -> int:
    """Return how many hosts with these requests fit on an empty node."""
    have = node.get("status", {}).get("allocatable", {})
    return int(
        min((o.quantity(have.get(name, 0)) // amount for name, amount in requests.items() if amount), default=999)
    )


def fitting_pools(pools: Pools, jobset: Obj, known: dict[Slices, int]) -> int:
    """Return how many empty node pools could take a slice of a JobSet. `known`: results of this call for `pools`."""
    if o.TOPOLOGY not in jobset["metadata"].get("annotations", {}):
        return len(pools)
    specs = [job["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]]
    slices = frozenset((frozenset(o.requests(s["template"]["spec"]).items()), s["parallelism"]) for s in specs)
    if slices not in known:
        known[slices] = sum(
            any(sum(_hosts(node, dict(requests)) for node in nodes) >= hosts for requests, hosts in slices)
            for nodes in pools.values()
        )
    return known[slices]


def never_fits(
    workload: Obj,
    jobset: Obj,
    maximums: Mapping[str, int],
    pools: Pools,
    flavor: str,
    known: dict[Slices, int],
) -> tuple[str, str]:
    """Return a reason and Kueue's message if a workload would not fit even into the empty cluster, else nothing.

    `maximums`: its queue's maximum of each resource, including borrowing. `known`: see `fitting_pools`.
    """
    needs, room = needs_of(jobset), fitting_pools(pools, jobset, known)
    shortfall = {**dict.fromkeys(needs, 0), POOLS: needs.get(POOLS, 0) - room}
    over = any(amount > maximums.get(name, 0) for name, amount in needs.items() if name != POOLS)
    if not over and shortfall[POOLS] <= 0:
        return "", ""
    return "QuotaExceeded" if over else "NodeFailures", waiting_message(
        workload, needs, shortfall, maximums, flavor, room
    )


def waiting_message(
    workload: Obj,
    needs: Mapping[str, int],
    shortfall: Mapping[str, int],
    maximums: Mapping[str, int],
    flavor: str,
    pools: int,
) -> str:
    """Return Kueue's message for a workload that waits."""
    prefix = f"couldn't assign flavors to pod set {workload['spec']['podSets'][0]['name']}: "
    for name, amount in needs.items():
        if name == POOLS:
            continue
        if name not in maximums:
            return f"{prefix}resource {name} unavailable in ClusterQueue"
        if amount > maximums[name]:
            return (
                f"{prefix}insufficient quota for {name} in flavor {flavor}, "
                f"previously considered podsets requests (0) + current podset request ({amount}) "
                f"> maximum capacity ({maximums[name]})"
            )
        if shortfall[name] > 0:
            return f"{prefix}insufficient unused quota for {name} in flavor {flavor}, {shortfall[name]} more needed"
    request = f"{needs.get(POOLS, 0)} of {pools} usable node pools requested"
    return f"{prefix}insufficient free node pools in flavor {flavor}, {request}, {shortfall.get(POOLS, 0)} more needed"
