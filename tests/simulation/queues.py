"""Queues of a simulated cluster: one, or several of a cohort that lend quota to each other, and what must hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.local.cases import RESOURCE, kueue
from xpk.api.base import Obj
from xpk.local import objects as o
from xpk.local.api import LocalApi
from xpk.local.preemption import spared_by
from xpk.local.store import Transaction

CHIPS = 4  # of a host
FIRST = "cluster-queue", "multislice-queue"  # the ClusterQueue and LocalQueue that every cluster has
_RECLAIMED = ("InCohortReclamation", "InCohortReclaimWhileBorrowing")
Use = Mapping[str, int]  # chips by queue


@dataclass(frozen=True, slots=True)
class Quota:
    """A queue's chips, and its rules of preemption as in Kueue."""

    nominal: int
    borrowing_limit: float
    kept: int  # of the nominal quota, which is never lent
    rules: Mapping[str, str]

    @property
    def most(self) -> float:
        """The chips that it may use, borrowed ones included."""
        return self.nominal + self.borrowing_limit


def set_up_cohort(api: LocalApi, rng: Random, count: int, chips: int) -> None:
    """Divide some or all of the cluster's chips among `count` queues of a cohort, with random limits and rules."""
    left = rng.choice((chips // CHIPS, rng.randint(1, chips // CHIPS)))
    for number in range(count):
        name, local = (f"team-{number}",) * 2 if number else FIRST
        share = left if number == count - 1 else rng.randint(0, left)
        left -= share
        apply_queue(api, name, _cohort_spec(rng, share * CHIPS, chips))
        api.apply(kueue("LocalQueue", local, spec={"clusterQueue": name}))


def apply_queue(api: LocalApi, name: str, spec: Obj) -> None:
    """Create or change a ClusterQueue."""
    api.apply(kueue("ClusterQueue", name, spec=spec))


def _cohort_spec(rng: Random, nominal: int, chips: int) -> Obj:
    quota: dict[str, Any] = {"name": RESOURCE, "nominalQuota": nominal}
    if rng.random() < 0.7:
        quota["borrowingLimit"] = CHIPS * rng.randint(0, 2)
    if rng.random() < 0.7:
        quota["lendingLimit"] = CHIPS * rng.randint(0, nominal // CHIPS)
    reclaim = rng.choice(("Any", "Any", "LowerPriority", "Never"))
    borrowing = "Never" if reclaim == "Never" else rng.choice(("LowerPriority", "Never"))
    return {
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "cohortName": "cohort",
        "preemption": {
            "withinClusterQueue": rng.choice(("LowerPriority", "LowerPriority", "Never")),
            "reclaimWithinCohort": reclaim,
            "borrowWithinCohort": {"policy": borrowing},
        },
        "resourceGroups": [{"coveredResources": [RESOURCE], "flavors": [{"name": "flavor", "resources": [quota]}]}],
    }


def resource_of(queue: Obj) -> dict[str, Any]:
    """Return a ClusterQueue's entry of chips."""
    entry: dict[str, Any] = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
    return entry


class Quotas:
    """The quota of all queues, which are one queue or one cohort."""

    def __init__(self, tx: Transaction) -> None:
        self.by_queue = {queue["metadata"]["name"]: _quota(queue) for queue in tx.list("ClusterQueue")}
        self._queues = {local["metadata"]["name"]: local["spec"]["clusterQueue"] for local in tx.list("LocalQueue")}

    def queue_of(self, workload: Obj) -> str:
        """Return the ClusterQueue of a workload."""
        return str(self._queues[workload["spec"]["queueName"]])

    def use(self, workloads: Iterable[Obj]) -> dict[str, int]:
        """Return the chips that workloads use of each queue."""
        used = dict.fromkeys(self.by_queue, 0)
        for workload in workloads:
            used[self.queue_of(workload)] += chips_of(workload)
        return used

    def excess(self, name: str, used: Use) -> str:
        """Return how an admission in a queue has exceeded the quota, "" if it has not."""
        queue = self.by_queue[name]
        total = sum(quota.nominal for quota in self.by_queue.values())
        if sum(used.values()) > total:
            return f"{sum(used.values())} chips are admitted, the quota is {total}"
        if used[name] > queue.most:
            return f"{used[name]} chips of {name} are admitted, at most {queue.most} may be"
        if used[name] > queue.kept and not self._is_lent(used):
            return f"{name} uses chips that other queues do not lend"
        return ""

    def fits(self, name: str, used: Use, chips: int) -> bool:
        """Return whether chips are free for a queue, borrowed ones included."""
        after = {**used, name: used[name] + chips}
        return after[name] <= self.by_queue[name].most and self._is_lent(after)

    def _is_lent(self, used: Use) -> bool:
        """Return whether everything beyond what the queues keep for themselves is lent by some queue."""
        shared = sum(max(0, used[name] - quota.kept) for name, quota in self.by_queue.items())
        return shared <= sum(quota.nominal - quota.kept for quota in self.by_queue.values())

    def may_preempt(self, workload: Obj, holding: Iterable[Obj]) -> list[Obj]:
        """Return the workloads of its own queue that a workload may preempt."""
        queue = self.by_queue[self.queue_of(workload)]
        is_too_large = chips_of(workload) > queue.nominal and queue.rules["borrowWithinCohort"] == "Never"
        if queue.rules["withinClusterQueue"] == "Never" or is_too_large:
            return []
        spared = spared_by(workload)
        return [
            w
            for w in holding
            if self.queue_of(w) == self.queue_of(workload)
            and _is_weaker(w, workload)
            and w["metadata"]["uid"] not in spared
        ]

    def reclaimable(self, workload: Obj, holding: Iterable[Obj]) -> list[Obj] | None:
        """Return what a workload preempts that lacks only the quota that others have borrowed; None if it may not.

        It is within the nominal quota of its queue. The lowest and newest workloads go first, each only while its queue
        is over its own quota.
        """
        name, used = self.queue_of(workload), self.use(holding)
        queue, victims = self.by_queue[name], list[Obj]()
        if used[name] + chips_of(workload) > queue.nominal or queue.rules["reclaimWithinCohort"] == "Never":
            return None
        if self.fits(name, used, chips_of(workload)):
            return None  # it lacks node pools, and no quota
        newest = sorted(holding, key=lambda w: str(w["metadata"]["uid"]), reverse=True)
        for other in sorted(newest, key=lambda w: int(w["spec"]["priority"])):
            borrower = self.queue_of(other)
            if borrower == name or used[borrower] <= self.by_queue[borrower].nominal:
                continue
            if queue.rules["reclaimWithinCohort"] == "LowerPriority" and not _is_weaker(other, workload):
                return None
            used[borrower] -= chips_of(other)
            victims.append(other)
        return victims

    def wrongly_reclaimed(self, holding: Iterable[Obj], evicted: Iterable[Obj]) -> str:
        """Return the queue from which more was reclaimed than it had borrowed, "" if none.

        `evicted` were evicted at once; `holding` are left.
        """
        evicted = [*evicted]
        reclaimed = [w for w in evicted if o.condition(w, "Preempted").get("reason") in _RECLAIMED]
        before, taken = self.use([*holding, *evicted]), self.use(reclaimed)
        for name in {self.queue_of(w) for w in reclaimed}:
            last = max(chips_of(w) for w in reclaimed if self.queue_of(w) == name)
            if before[name] - taken[name] + last <= self.by_queue[name].nominal:
                return name
        return ""


def _quota(queue: Obj) -> Quota:
    entry, spec = resource_of(queue), queue["spec"]
    nominal, lent = int(entry["nominalQuota"]), int(entry.get("lendingLimit", entry["nominalQuota"]))
    rules = {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never", "borrowWithinCohort": "Never"}
    for key, rule in spec["preemption"].items():
        rules[key] = rule if isinstance(rule, str) else rule["policy"]
    most = math.inf if spec.get("cohortName") else 0
    return Quota(nominal, entry.get("borrowingLimit", most), max(0, nominal - lent), rules)


def _is_weaker(one: Obj, other: Obj) -> bool:
    return bool(one["spec"]["priority"] < other["spec"]["priority"])


def chips_of(workload: Obj) -> int:
    """Return the chips that a workload requests."""
    return sum(CHIPS * pod_set["count"] for pod_set in workload["spec"]["podSets"])
