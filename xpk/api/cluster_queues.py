"""How a ClusterQueue's quotas are read, whoever made it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from xpk.api.base import Obj
from xpk.api.quantities import quantity
from xpk.model.quotas import Allotment

Key = tuple[str, str]  # a flavor and a resource


def allotments(cluster_queue: Obj) -> dict[Key, Allotment]:
    """Return what a ClusterQueue has of each flavor's resources, and what is reserved of it."""
    found = {
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
            if key in found:
                found[key] = replace(found[key], used=quantity(entry.get("total", 0)))
    return found


def cohort_of(cluster_queue: Obj) -> str:
    """Return the cohort that a ClusterQueue is in, "" if it is in none."""
    return str(cluster_queue["spec"].get("cohortName") or "")


def members(cluster_queue: Obj, cluster_queues: Iterable[Obj]) -> list[Obj]:
    """Return the ClusterQueues that lend to each other with this one, itself among them."""
    cohort = cohort_of(cluster_queue)
    return [each for each in cluster_queues if cohort and cohort_of(each) == cohort] or [cluster_queue]


def _limit(entry: Obj, name: str) -> float | None:
    return None if entry.get(name) is None else quantity(entry[name])
