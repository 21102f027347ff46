"""Queue controller: a workload for each queued JobSet, and admission decisions as Kueue's conditions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from xpk.api.base import Obj
from xpk.api.cluster_queues import allotments
from xpk.api.slice_restarts import has_elastic_slices
from xpk.local import objects as o
from xpk.local import preemption
from xpk.local.admission import IN_QUEUE, RECLAIMED, RECLAIMED_BORROWING, decide
from xpk.local.feasibility import POOLS, Slices, needs_of, never_fits, usable_pools, waiting_message
from xpk.local.ledger import Claim, ceilings
from xpk.local.quota_model import model_of
from xpk.local.store import Transaction

_KINDS = ("JobSet", "Workload", "Pod", "LocalQueue", "ClusterQueue", "ResourceFlavor", "WorkloadPriorityClass", "Node")
_CONTROLLED = 2**31  # priority of workloads outside of queues: they cannot be preempted
_RECOVERY_SECONDS = 5.0  # how long a workload keeps its place after losing node pools, which may be replaced
_ELASTIC_RECOVERY_SECONDS = 1800.0  # Kueue's default: other slices may go on without the lost one
_DEACTIVATED = "the workload is deactivated"
_PREEMPTED = {
    IN_QUEUE: "prioritization in the ClusterQueue",
    RECLAIMED: "reclamation within the cohort",
    RECLAIMED_BORROWING: "reclamation within the cohort while borrowing",
}


def _create_workload(tx: Transaction, jobset: Obj) -> Obj:
    meta, spec = jobset["metadata"], jobset["spec"]
    key = f"JobSet/{meta['namespace']}/{meta['name']}/{meta['uid']}"
    digest = hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest()  # as Kueue names it
    pod_sets = [
        {
            "name": job["name"],
            "count": job["replicas"] * job["template"]["spec"]["parallelism"],
            "template": job["template"]["spec"]["template"],
        }
        for job in spec["replicatedJobs"]
    ]
    workload: Obj = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": f"jobset-{meta['name']}-{digest[:5]}",
            "namespace": meta["namespace"],
            "labels": {"kueue.x-k8s.io/job-uid": meta["uid"], f"{o.JOBSET}jobset-name": meta["name"]},
            "ownerReferences": [o.owner_reference(jobset)],
        },
        "spec": {"active": True, "queueName": o.label(jobset, o.QUEUE_LABEL), "podSets": pod_sets},
        "status": {},
    }
    name = o.label(jobset, o.PRIORITY_LABEL)
    priority = tx.get("WorkloadPriorityClass", "", name) if name else None
    workload["spec"]["priority"] = priority["value"] if priority else 0
    if priority:
        reference = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": name}
        workload["spec"]["priorityClassRef"] = reference
    tx.put(workload)
    tx.event(workload, "Created", f"Workload for JobSet {o.full_name(jobset)}")
    return workload


def _evict(tx: Transaction, workload: Obj, reason: str, message: str, *, preempted: str = "") -> None:
    o.set_condition(workload, "Evicted", True, reason, message)
    if preempted:
        o.set_condition(workload, "Preempted", True, preempted, message)
    tx.put(workload)
    tx.event(workload, "Preempted" if reason == "Preempted" else f"EvictedDueTo{reason}", message)


def _sync(tx: Transaction, jobset: Obj, workload: Obj, alive: bool) -> None:
    """Synchronize a JobSet and its workload."""
    active, is_changed = workload["spec"].get("active", True), True
    reserved, evicted = o.is_true(workload, "QuotaReserved"), o.is_true(workload, "Evicted")
    if jobset.get("status", {}).get("terminalState"):
        done = o.condition(jobset, "Completed") or o.condition(jobset, "Failed")
        reason = "Succeeded" if done["type"] == "Completed" else "Failed"
        o.set_condition(workload, "Finished", True, reason, done["message"])
    elif reserved and not active and not evicted:
        _evict(tx, workload, "Deactivated", _DEACTIVATED)
    elif reserved and evicted and not alive and jobset["spec"].get("suspend"):
        why = o.condition(workload, "Evicted")
        o.set_condition(workload, "QuotaReserved", False, "Pending", why["message"])
        o.set_condition(workload, "Admitted", False, "NoReservation", "the workload has no reservation")
        o.set_condition(workload, "PodsReady", False, "WaitForStart", "the hosts have not been started")
        workload["status"].pop("admission", None)
        requeued = why["reason"] != "Deactivated"
        o.set_condition(workload, "Requeued", requeued, why["reason"], why["message"])
    elif not reserved and active and o.condition(workload, "Requeued").get("reason") == "Deactivated":
        o.set_condition(workload, "Requeued", True, "Reactivated", "the workload was reactivated")
    elif not reserved and not active:
        o.set_condition(workload, "QuotaReserved", False, "Inadmissible", _DEACTIVATED)
        preemption.unmark(workload)
    elif reserved and not evicted:
        jobs = jobset.get("status", {}).get("replicatedJobsStatus", ())
        size = sum(job["replicas"] for job in jobset["spec"]["replicatedJobs"])
        if sum(job["ready"] + job["succeeded"] for job in jobs) == size:
            o.set_condition(workload, "PodsReady", True, "Started", "all hosts are running")
        else:
            old = o.condition(workload, "PodsReady")
            ran = old.get("status") == "True" or old.get("reason") == "WaitForRecovery"
            reason = "WaitForRecovery" if ran else "WaitForStart"
            o.set_condition(workload, "PodsReady", False, reason, "not all hosts are running")
    else:
        is_changed = False
    if is_changed:
        tx.put(workload)
    run = o.is_true(workload, "QuotaReserved") and not o.is_true(workload, "Evicted")
    if not jobset.get("status", {}).get("terminalState") and jobset["spec"].get("suspend", False) is run:
        jobset["spec"]["suspend"] = not run
        tx.put(jobset)


def _follow_queue(tx: Transaction, jobset: Obj, workload: Obj) -> None:
    """Let the workload of a suspended JobSet follow it into another queue; as in Kueue, unless it was evicted."""
    queue = o.label(jobset, o.QUEUE_LABEL)
    is_bound = o.is_true(workload, "QuotaReserved") or o.is_true(workload, "Evicted")
    if workload["spec"]["queueName"] != queue and not is_bound:
        workload["spec"]["queueName"] = queue
        tx.put(workload)


def _admit(tx: Transaction, workload: Obj, queue: str, flavor: str) -> None:
    assignments = []
    for pod_set in workload["spec"]["podSets"]:
        each = o.requests(pod_set["template"]["spec"])
        assignments.append(
            {
                "name": pod_set["name"],
                "flavors": dict.fromkeys(each, flavor),
                "resourceUsage": {k: str(int(amount * pod_set["count"])) for k, amount in each.items()},
                "count": pod_set["count"],
            }
        )
    workload["status"]["admission"] = {"clusterQueue": queue, "podSetAssignments": assignments}
    preemption.unmark(workload)
    reserved = f"Quota reserved in ClusterQueue {queue}"
    o.set_condition(workload, "QuotaReserved", True, "QuotaReserved", reserved)
    o.set_condition(workload, "Admitted", True, "Admitted", f"Admitted by ClusterQueue {queue}")
    for kind in ("Evicted", "Preempted"):
        if o.is_true(workload, kind):
            before = o.condition(workload, kind)["message"]
            o.set_condition(workload, kind, False, "QuotaReserved", f"Previously: {before}")
    waited = int(o.age(workload["metadata"]["creationTimestamp"]))
    tx.event(workload, "QuotaReserved", f"{reserved}, wait time since queued was {waited}s")
    tx.event(workload, "Admitted", f"Admitted by ClusterQueue {queue}")


def _refuse(tx: Transaction, workload: Obj, message: str, reason: str = "Pending") -> None:
    before = o.condition(workload, "QuotaReserved")
    if (before.get("status"), before.get("reason"), before.get("message")) == ("False", reason, message):
        return  # as for most of a long queue: writing compares the whole object
    o.set_condition(workload, "QuotaReserved", False, reason, message)
    if tx.put(workload):
        tx.event(workload, reason, message, warning=True)


def _is_stalled(workload: Obj, jobset: Obj, reason: str) -> bool:
    """Return whether a workload that no longer fits has stopped; a running one may continue, as in Kueue."""
    ready = o.condition(workload, "PodsReady")
    lost = ready.get("status") == "False"
    patience = _ELASTIC_RECOVERY_SECONDS if has_elastic_slices(jobset) else _RECOVERY_SECONDS
    return lost and (reason != "NodeFailures" or o.age(ready["lastTransitionTime"]) >= patience)


def _flavor_of(queue: Obj) -> str:
    """Return the flavor of a ClusterQueue; it has at most one."""
    return next((str(flavor) for flavor, _ in allotments(queue)), "")


def _schedule(
    tx: Transaction,
    flavor: str,
    cluster_queues: Sequence[Obj],
    entries: dict[str, tuple[Obj, Obj, str]],
    others: list[Claim],
) -> bool:
    """Run one round for the ClusterQueues of a flavor; return whether a workload that no longer fits is still running.

    `entries` maps a workload's UID to its JobSet, the workload and its ClusterQueue's name.
    """
    queues = {queue["metadata"]["name"]: model_of(queue) for queue in cluster_queues}
    pools = usable_pools(tx, flavor)
    most = {name: ceilings(name, queues) for name in queues}
    running, waiting, known, waits = list[Claim](), list[Claim](), dict[Slices, int](), False
    for uid, (jobset, workload, name) in entries.items():
        claim = Claim(uid, workload["spec"]["priority"], needs_of(jobset), name, spares=preemption.spared_by(workload))
        reason, message = never_fits(workload, jobset, most[name], pools, flavor, known)
        if o.is_true(workload, "QuotaReserved") and not o.is_true(workload, "Evicted"):
            since = o.condition(workload, "QuotaReserved")["lastTransitionTime"]
            running.append(replace(claim, reserved=datetime.fromisoformat(since).timestamp()))
            waits |= bool(reason)
            if reason and _is_stalled(workload, jobset, reason):
                _evict(tx, workload, reason, message)
                _sync(tx, jobset, workload, alive=True)
        elif not o.is_true(workload, "QuotaReserved") and workload["spec"].get("active", True):
            if reason:
                _refuse(tx, workload, message)
            else:
                waiting.append(claim)
    leaving = [claim for claim in others if claim.priority < _CONTROLLED]
    running += [claim for claim in others if claim.priority == _CONTROLLED]
    preemptors = {claim.uid for claim in waiting if preemption.is_first(entries[claim.uid][1], claim.queue)}
    decision = decide(queues, {POOLS: len(pools)}, running, [], waiting, ending=leaving, preemptors=preemptors)
    preemption.mark(tx, ((workload, name) for _, workload, name in entries.values()), decision.preemptors)
    for uid in decision.admit:
        jobset, workload, name = entries[uid]
        _admit(tx, workload, name, flavor)
        _sync(tx, jobset, workload, alive=False)
    for victim, winner in decision.preempt.items():
        jobset, workload, _ = entries[victim]
        reason = decision.reasons[victim]
        why = f"Preempted to accommodate a workload (UID: {winner}) due to {_PREEMPTED[reason]}"
        if reason != RECLAIMED:  # a queue always gets its own quota back
            preemption.record(tx, entries[winner][1], workload)
        _evict(tx, workload, "Preempted", why, preempted=reason)
        _sync(tx, jobset, workload, alive=True)
    needs = {claim.uid: claim.needs for claim in waiting}
    for uid, shortfall in decision.lacking.items():
        _, workload, name = entries[uid]
        _refuse(tx, workload, waiting_message(workload, needs[uid], shortfall, most[name], flavor, len(pools)))
    return waits


def _status(queue: Obj, workloads: Sequence[Obj], nominal: Sequence[Obj]) -> None:
    """Count the workloads of a LocalQueue or ClusterQueue, and their use."""
    open_ones = [w for w in workloads if not o.is_true(w, "Finished")]
    reserving = [w for w in open_ones if o.is_true(w, "QuotaReserved")]
    flavors, meta = [], queue["metadata"]
    for flavor in nominal:
        usage = []
        for resource in flavor["resources"]:
            sets = (s for w in reserving for s in w["status"]["admission"]["podSetAssignments"])
            total = sum(int(s["resourceUsage"].get(resource["name"], 0)) for s in sets)
            lent = {"borrowed": str(max(0, total - int(o.quantity(resource["nominalQuota"]))))}
            usage.append({"name": resource["name"], "total": str(total), **(lent if "namespace" not in meta else {})})
        flavors.append({"name": flavor["name"], "resources": usage})
    counts = {
        "pendingWorkloads": sum(w["spec"].get("active", True) for w in open_ones) - len(reserving),
        "reservingWorkloads": len(reserving),
        "admittedWorkloads": len(reserving),
    }
    queue.setdefault("status", {}).update(counts, flavorsReservation=flavors, flavorsUsage=flavors)
    o.set_condition(queue, "Active", True, "Ready", "Can admit new workloads")


def _others(tx: Transaction, holding: set[str], queued: Mapping[str, str], evicted: Mapping[str, Obj]) -> list[Claim]:
    """Return claims for running hosts without a valid reservation: stopped ones, and those outside of queues.

    Hosts of JobSets that wait in a ClusterQueue, `queued` by UID, use its quota too, all others only the node
    pools. `evicted` JobSets keep their whole reservation until their last host has ended.
    """
    free_jobsets = {j["metadata"]["uid"] for j in tx.list("JobSet") if not o.label(j, o.QUEUE_LABEL)}
    slices: dict[str, set[str]] = {}
    claims: dict[str, dict[str, int]] = {}
    for pod in tx.list("Pod"):
        uid = o.label(pod, f"{o.JOBSET}jobset-uid")
        if o.has_ended(pod) or uid in holding or uid in evicted:
            continue
        needs = claims.setdefault(uid, {})
        slices.setdefault(uid, set()).add(o.label(pod, f"{o.JOBSET}job-key"))
        needs[POOLS] = len(slices[uid])
        if uid in queued:
            for name, amount in o.requests(pod["spec"]).items():
                needs[name] = needs.get(name, 0) + int(amount)
    reserved = [Claim(uid, 0, needs_of(jobset), queued[uid]) for uid, jobset in evicted.items() if uid in queued]
    return reserved + [
        Claim(uid, _CONTROLLED if uid in free_jobsets else 0, needs, queued.get(uid, ""))
        for uid, needs in claims.items()
    ]


def reconcile(tx: Transaction) -> None:
    """Create a workload for every queued JobSet, admit and evict, and update the queues' counts."""
    tx.settle("queue", _KINDS, partial(_reconcile, tx))


def _reconcile(tx: Transaction) -> bool:
    """Reconcile all queues; return whether a workload waits for the time until it is evicted."""
    alive = {o.label(pod, f"{o.JOBSET}jobset-uid") for pod in tx.list("Pod") if not o.has_ended(pod)}
    workloads = {o.owner_uid(workload): workload for workload in tx.list("Workload")}
    flavors: dict[str, list[Obj]] = {}
    for queue in tx.list("ClusterQueue"):
        flavors.setdefault(_flavor_of(queue), []).append(queue)
    flavor_of_queue = {queue["metadata"]["name"]: flavor for flavor, queues in flavors.items() for queue in queues}
    entries: dict[str, dict[str, tuple[Obj, Obj, str]]] = {flavor: {} for flavor in flavors}
    holding, queued, evicted = set[str](), dict[str, str](), dict[str, Obj]()
    for jobset in tx.list("JobSet"):
        uid = jobset["metadata"]["uid"]
        if not o.label(jobset, o.QUEUE_LABEL):
            continue
        workload = workloads[uid] = workloads.get(uid) or _create_workload(tx, jobset)
        if not (o.is_true(workload, "Finished") and jobset.get("status", {}).get("terminalState")):
            _sync(tx, jobset, workload, uid in alive)
            _follow_queue(tx, jobset, workload)
        if o.is_true(workload, "Finished"):
            continue
        local = tx.get("LocalQueue", jobset["metadata"]["namespace"], workload["spec"]["queueName"])
        name = local["spec"]["clusterQueue"] if local else ""
        if name not in flavor_of_queue:
            missing = f"ClusterQueue {name}" if local else f"LocalQueue {workload['spec']['queueName']}"
            _refuse(tx, workload, f"{missing} doesn't exist", "Inadmissible")
            continue
        entries[flavor_of_queue[name]][workload["metadata"]["uid"]] = jobset, workload, name
        queued[uid] = name
        if o.is_true(workload, "QuotaReserved"):
            if o.is_true(workload, "Evicted"):
                evicted[uid] = jobset
            else:
                holding.add(uid)
    waits = False
    for flavor, queues in flavors.items():
        if entries[flavor]:
            # Hosts of another flavor's queues do not use this quota.
            flavor_of = {uid: name for uid, name in queued.items() if flavor_of_queue[name] == flavor}
            waits |= _schedule(tx, flavor, queues, entries[flavor], _others(tx, holding, flavor_of, evicted))
    _count(tx, workloads.values())
    return waits


def _count(tx: Transaction, workloads: Iterable[Obj]) -> None:
    """Update every queue's number of workloads and their use."""
    of: dict[tuple[str, str], list[Obj]] = {}
    for workload in workloads:
        of.setdefault((workload["metadata"]["namespace"], workload["spec"]["queueName"]), []).append(workload)
    local_queues = tx.list("LocalQueue")
    for queue in tx.list("ClusterQueue"):
        flavors = [flavor for group in queue["spec"].get("resourceGroups", []) for flavor in group["flavors"]]
        everything: list[Obj] = []
        for local in local_queues:
            if local["spec"]["clusterQueue"] == queue["metadata"]["name"]:
                own_workloads = of.get((local["metadata"]["namespace"], local["metadata"]["name"]), [])
                _status(local, own_workloads, flavors)
                tx.put(local)
                everything += own_workloads
        _status(queue, everything, flavors)
        tx.put(queue)
