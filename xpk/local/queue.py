"""The queue: a workload for each queued JobSet, and what was decided about it in Kueue's conditions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from xpk.api.base import Obj
from xpk.local import objects as o
from xpk.local.admission import Claim, decide
from xpk.local.room import POOLS, needs_of, never_fits, usable_pools, why_not
from xpk.local.store import Transaction

_CONTROLLED = 2**31  # priority of what no queue controls: it can't be preempted
_RECOVERY_SECONDS = 5.0  # how long what lost its node pools keeps its place: they may be replaced
_DEACTIVATED = "the workload is deactivated"


def _create_workload(tx: Transaction, jobset: Obj) -> Obj:
    meta, spec = jobset["metadata"], jobset["spec"]
    digest = hashlib.sha1(f"JobSet/{meta['namespace']}/{meta['name']}/{meta['uid']}".encode()).hexdigest()
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


def _evict(tx: Transaction, workload: Obj, reason: str, message: str) -> None:
    o.set_condition(workload, "Evicted", True, reason, message)
    if reason == "Preempted":
        o.set_condition(workload, "Preempted", True, "InClusterQueue", message)
    tx.event(workload, "Preempted" if reason == "Preempted" else f"EvictedDueTo{reason}", message)


def _sync(tx: Transaction, jobset: Obj, workload: Obj, alive: bool) -> None:
    """Bring a JobSet and its workload in line with each other."""
    active = workload["spec"].get("active", True)
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
    elif reserved and not evicted:
        jobs = jobset.get("status", {}).get("replicatedJobsStatus", ())
        wanted = sum(job["replicas"] for job in jobset["spec"]["replicatedJobs"])
        if sum(job["ready"] + job["succeeded"] for job in jobs) == wanted:
            o.set_condition(workload, "PodsReady", True, "Started", "all hosts are running")
        else:
            old = o.condition(workload, "PodsReady")
            ran = old.get("status") == "True" or old.get("reason") == "WaitForRecovery"
            reason = "WaitForRecovery" if ran else "WaitForStart"
            o.set_condition(workload, "PodsReady", False, reason, "not all hosts are running")
    tx.put(workload)
    run = o.is_true(workload, "QuotaReserved") and not o.is_true(workload, "Evicted")
    if not jobset.get("status", {}).get("terminalState") and jobset["spec"].get("suspend", False) is run:
        jobset["spec"]["suspend"] = not run
        tx.put(jobset)


def _admit(tx: Transaction, workload: Obj, queue: Obj, flavor: str) -> None:
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
    name = queue["metadata"]["name"]
    workload["status"]["admission"] = {"clusterQueue": name, "podSetAssignments": assignments}
    reserved = f"Quota reserved in ClusterQueue {name}"
    o.set_condition(workload, "QuotaReserved", True, "QuotaReserved", reserved)
    o.set_condition(workload, "Admitted", True, "Admitted", f"Admitted by ClusterQueue {name}")
    for kind in ("Evicted", "Preempted"):
        if o.is_true(workload, kind):
            before = o.condition(workload, kind)["message"]
            o.set_condition(workload, kind, False, "QuotaReserved", f"Previously: {before}")
    waited = int(o.age(workload["metadata"]["creationTimestamp"]))
    tx.event(workload, "QuotaReserved", f"{reserved}, wait time since queued was {waited}s")
    tx.event(workload, "Admitted", f"Admitted by ClusterQueue {name}")


def _refuse(tx: Transaction, workload: Obj, message: str, reason: str = "Pending") -> None:
    o.set_condition(workload, "QuotaReserved", False, reason, message)
    if tx.put(workload):
        tx.event(workload, reason, message, warning=True)


def _is_stalled(workload: Obj, reason: str) -> bool:
    """Return whether what no longer fits has stopped running; what runs may run on, as in Kueue."""
    ready = o.condition(workload, "PodsReady")
    lost = ready.get("status") == "False"
    return lost and (reason != "NodeFailures" or o.age(ready["lastTransitionTime"]) >= _RECOVERY_SECONDS)


def _schedule(tx: Transaction, queue: Obj, mine: dict[str, tuple[Obj, Obj]], others: list[Claim]) -> None:
    """Run one round for a ClusterQueue; `mine` maps a workload's UID to its JobSet and itself."""
    groups = queue["spec"].get("resourceGroups", [])
    flavor: Obj = groups[0]["flavors"][0] if groups else {"name": "", "resources": []}
    nominal = {r["name"]: int(o.quantity(r["nominalQuota"])) for r in flavor["resources"]}
    pools = usable_pools(tx, flavor["name"])
    held, waiting = [], []
    for uid, (jobset, workload) in mine.items():
        claim = Claim(uid, workload["spec"]["priority"], needs_of(jobset))
        reason, message = never_fits(workload, jobset, nominal, pools, flavor["name"])
        if o.is_true(workload, "QuotaReserved") and not o.is_true(workload, "Evicted"):
            held.append(claim)
            if reason and _is_stalled(workload, reason):
                _evict(tx, workload, reason, message)
                _sync(tx, jobset, workload, alive=True)
        elif not o.is_true(workload, "QuotaReserved") and workload["spec"].get("active", True):
            if reason:
                _refuse(tx, workload, message)
            else:
                waiting.append(claim)
    leaving = [claim for claim in others if claim.priority < _CONTROLLED]
    held += [claim for claim in others if claim.priority == _CONTROLLED]
    policy = queue["spec"].get("preemption", {}).get("withinClusterQueue", "Never")
    decision = decide({**nominal, POOLS: len(pools)}, held, leaving, waiting, preemption=policy != "Never")
    for uid in decision.admit:
        jobset, workload = mine[uid]
        _admit(tx, workload, queue, flavor["name"])
        _sync(tx, jobset, workload, alive=False)
    for victim, winner in decision.preempt.items():
        jobset, workload = mine[victim]
        why = f"Preempted to accommodate a workload (UID: {winner}) due to prioritization in the ClusterQueue"
        _evict(tx, workload, "Preempted", why)
        _sync(tx, jobset, workload, alive=True)
    needs = {claim.uid: claim.needs for claim in waiting}
    for uid, lacking in decision.lacking.items():
        message = why_not(mine[uid][1], needs[uid], lacking, nominal, flavor["name"], len(pools))
        _refuse(tx, mine[uid][1], message)


def _status(queue: Obj, workloads: Sequence[Obj], nominal: Sequence[Obj]) -> None:
    """Count the workloads of a LocalQueue or ClusterQueue and what they use."""
    open_ones = [w for w in workloads if not o.is_true(w, "Finished")]
    reserving = [w for w in open_ones if o.is_true(w, "QuotaReserved")]
    flavors = []
    for flavor in nominal:
        used = []
        for resource in flavor["resources"]:
            sets = (s for w in reserving for s in w["status"]["admission"]["podSetAssignments"])
            total = sum(int(s["resourceUsage"].get(resource["name"], 0)) for s in sets)
            used.append({"name": resource["name"], "total": str(total)})
        flavors.append({"name": flavor["name"], "resources": used})
    counts = {
        "pendingWorkloads": sum(w["spec"].get("active", True) for w in open_ones) - len(reserving),
        "reservingWorkloads": len(reserving),
        "admittedWorkloads": len(reserving),
    }
    queue.setdefault("status", {}).update(counts, flavorsReservation=flavors, flavorsUsage=flavors)
    o.set_condition(queue, "Active", True, "Ready", "Can admit new workloads")


def _others(tx: Transaction, holding: set[str]) -> list[Claim]:
    """Return claims for the hosts that run without a reservation: stopped ones, and those of no queue."""
    free_jobsets = {j["metadata"]["uid"] for j in tx.list("JobSet") if not o.label(j, o.QUEUE_LABEL)}
    slices: dict[str, set[str]] = {}
    claims: dict[str, dict[str, int]] = {}
    for pod in tx.list("Pod"):
        uid = o.label(pod, f"{o.JOBSET}jobset-uid")
        if o.has_ended(pod) or uid in holding:
            continue
        needs = claims.setdefault(uid, {})
        slices.setdefault(uid, set()).add(o.label(pod, f"{o.JOBSET}job-key"))
        needs[POOLS] = len(slices[uid])
        if uid not in free_jobsets:
            for name, amount in o.requests(pod["spec"]).items():
                needs[name] = needs.get(name, 0) + int(amount)
    return [Claim(uid, _CONTROLLED if uid in free_jobsets else 0, needs) for uid, needs in claims.items()]


def reconcile(tx: Transaction) -> None:
    """Give every queued JobSet its workload, admit and evict, and keep the counts of the queues."""
    alive = {o.label(pod, f"{o.JOBSET}jobset-uid") for pod in tx.list("Pod") if not o.has_ended(pod)}
    workloads = {o.owner_uid(workload): workload for workload in tx.list("Workload")}
    queues: dict[str, dict[str, tuple[Obj, Obj]]] = {}
    holding: set[str] = set()
    for jobset in tx.list("JobSet"):
        uid = jobset["metadata"]["uid"]
        if not o.label(jobset, o.QUEUE_LABEL):
            continue
        workload = workloads[uid] = workloads.get(uid) or _create_workload(tx, jobset)
        _sync(tx, jobset, workload, uid in alive)
        if o.is_true(workload, "Finished"):
            continue
        local = tx.get("LocalQueue", jobset["metadata"]["namespace"], workload["spec"]["queueName"])
        name = local["spec"]["clusterQueue"] if local else ""
        if not tx.get("ClusterQueue", "", name):
            missing = f"ClusterQueue {name}" if local else f"LocalQueue {workload['spec']['queueName']}"
            _refuse(tx, workload, f"{missing} doesn't exist", "Inadmissible")
            continue
        queues.setdefault(name, {})[workload["metadata"]["uid"]] = jobset, workload
        if o.is_true(workload, "QuotaReserved") and not o.is_true(workload, "Evicted"):
            holding.add(uid)
    for name, mine in queues.items():
        queue = tx.get("ClusterQueue", "", name)
        if queue:
            _schedule(tx, queue, mine, _others(tx, holding))
    for local in tx.list("LocalQueue"):
        queue = tx.get("ClusterQueue", "", local["spec"]["clusterQueue"])
        groups = queue["spec"].get("resourceGroups", []) if queue else []
        flavors = [flavor for group in groups for flavor in group["flavors"]]
        mine_too = [w for w in workloads.values() if w["spec"]["queueName"] == local["metadata"]["name"]]
        _status(local, mine_too, flavors)
        tx.put(local)
        if queue:
            _status(queue, mine_too, flavors)
            tx.put(queue)
