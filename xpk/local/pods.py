"""Pod controller: scheduling, synchronization with hosts, eviction, and records of deleted pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from xpk.api.base import Obj
from xpk.api.slice_restarts import has_elastic_slices, restarts_slices
from xpk.local import objects as o
from xpk.local.jobset import delete_pod
from xpk.local.process import Host
from xpk.local.store import Transaction

_FORMER_KEPT = 5  # attempts of each host whose logs are kept
_ABSENT = Host()
_SAVED = 143
_ASKED, _LOST = "asked to end", re.compile(r"lost slice (\d+) host (\d+)")  # termination messages of hosts
Plan = list[tuple[Obj, Obj]]  # pods and their nodes


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort `np-10` after `np-9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text) if part]


def _address(node: Obj) -> str:
    addresses = node.get("status", {}).get("addresses", ())
    return next((str(a["address"]) for a in addresses if a["type"] == "InternalIP"), "127.0.0.1")


def _is_open(node: Obj, tolerations: Sequence[Obj]) -> bool:
    """Return whether new hosts with these tolerations may be placed on a node."""
    return o.is_true(node, "Ready") and not o.is_closed(node, tolerations)


class Placement:
    """Pods by node, and free capacity."""

    def __init__(self, tx: Transaction) -> None:
        every = sorted(tx.list("Node"), key=lambda n: _natural(n["metadata"]["name"]))
        self._every = {n["metadata"]["name"]: n for n in every}
        self.free = {
            name: {k: o.quantity(v) for k, v in node.get("status", {}).get("allocatable", {}).items()}
            for name, node in self._every.items()
        }
        self.load = dict.fromkeys(self._every, 0)
        self.tenants: dict[str, set[str]] = {name: set() for name in self._every}
        for pod in tx.list("Pod"):
            if not o.has_ended(pod) and pod["spec"].get("nodeName") in self._every:
                self.add(pod, pod["spec"]["nodeName"])

    def add(self, pod: Obj, node: str, sign: int = 1) -> None:
        """Add a pod to a node, or with -1 remove it."""
        for name, amount in o.requests(pod["spec"]).items():
            self.free[node][name] = self.free[node].get(name, 0) - sign * amount
        self.load[node] += sign
        owner = o.owner_uid(pod)
        self.tenants[node].add(owner) if sign > 0 else self.tenants[node].discard(owner)

    def open_to(self, pod: Obj) -> dict[str, Obj]:
        """Return the nodes on which new hosts may be placed that tolerate what a pod tolerates, by name."""
        tolerations = pod["spec"].get("tolerations", ())
        return {name: node for name, node in self._every.items() if _is_open(node, tolerations)}

    def pools(self, pods: Sequence[Obj], fixed: str | None) -> list[list[str]]:
        """Return the groups of nodes that may run all these pods of one Job."""
        names = [name for name, node in self.open_to(pods[0]).items() if o.selects(pods[0], node)]
        topology = pods[0]["metadata"]["annotations"].get(o.TOPOLOGY)
        if not topology:
            return [names]
        groups: dict[str, list[str]] = {}
        for name, node in self._every.items():  # a host on a closed node still uses its pool
            groups.setdefault(o.label(node, topology), []).append(name)
        owners = {o.owner_uid(pods[0])}
        return [
            [name for name in group if name in names]
            for key, group in sorted(groups.items(), key=lambda item: _natural(item[0]))
            if key and fixed in (None, key) and all(self.tenants[name] <= owners for name in group)
        ]

    def place(self, pods: Sequence[Obj], group: Sequence[str]) -> Plan | None:
        """Place pods on the least busy nodes of a group with free capacity; None if they do not all fit."""
        plan: Plan = []
        for pod in pods:
            needs = o.requests(pod["spec"]).items()
            fitting = [n for n in group if all(self.free[n].get(k, 0) >= amount for k, amount in needs)]
            if not fitting:
                for placed, node in plan:
                    self.add(placed, node["metadata"]["name"], -1)
                return None
            best = min(fitting, key=lambda name: self.load[name])
            self.add(pod, best)
            plan.append((pod, self._every[best]))
        return plan


def by_jobset(tx: Transaction) -> dict[str, list[Obj]]:
    """Return the pods of each JobSet, by its UID."""
    pods_of: dict[str, list[Obj]] = {}
    for pod in tx.list("Pod"):
        pods_of.setdefault(o.label(pod, f"{o.JOBSET}jobset-uid"), []).append(pod)
    return pods_of


def _groups(tx: Transaction, jobset: Obj, pods: Sequence[Obj]) -> Iterator[tuple[list[Obj], int]]:
    """Yield the pods that start together, and their number: of a JobSet, or of a slice that restarts alone."""
    jobs = [job for job in tx.owned("Job", jobset) if not o.is_terminating(job)]
    if restarts_slices(jobset):
        for job in jobs:
            own_pods = [pod for pod in pods if o.owner_uid(pod) == job["metadata"]["uid"]]
            yield own_pods, job["spec"]["parallelism"] - job["status"].get("succeeded", 0)
    else:
        size = sum(r["replicas"] * r["template"]["spec"]["parallelism"] for r in jobset["spec"]["replicatedJobs"])
        yield [*pods], size - sum(job["status"].get("succeeded", 0) for job in jobs)


def _is_complete(jobset: Obj, pods: Sequence[Obj], size: int, *, bound: bool) -> bool:
    """Return whether all hosts of the current attempt exist, or are bound: names need addresses."""
    attempt = str(jobset["status"].get("restarts", 0))
    attempt_pods = [
        pod
        for pod in pods
        if not o.has_ended(pod) and not o.is_terminating(pod) and o.label(pod, f"{o.JOBSET}restart-attempt") == attempt
    ]
    return len(attempt_pods) >= size and (not bound or all("nodeName" in pod["spec"] for pod in attempt_pods))


def startable(tx: Transaction, pods_of: Mapping[str, list[Obj]]) -> set[str]:
    """Return the UIDs of the pods whose hosts may start. `pods_of`: the pods by JobSet."""
    return {
        pod["metadata"]["uid"]
        for jobset in tx.list("JobSet")
        for group, size in _groups(tx, jobset, pods_of.get(jobset["metadata"]["uid"], []))
        if _is_complete(jobset, group, size, bound=True)
        for pod in group
    }


def _bind(tx: Transaction) -> bool:
    """Bind all pending pods that start together to nodes, or none of them; return False: it waits for no time."""
    pods_of, placement = by_jobset(tx), None
    for jobset in tx.list("JobSet"):
        for pods, size in _groups(tx, jobset, pods_of.get(jobset["metadata"]["uid"], [])):
            waiting = [
                p for p in pods if "nodeName" not in p["spec"] and not o.has_ended(p) and not o.is_terminating(p)
            ]
            if waiting and _is_complete(jobset, pods, size, bound=False):
                placement = placement or Placement(tx)
                _place(tx, placement, pods, waiting)
    return False


def _place(tx: Transaction, placement: Placement, pods: Sequence[Obj], waiting: Sequence[Obj]) -> None:
    """Bind all waiting pods to nodes, or report that they do not fit."""
    jobs: dict[str, list[Obj]] = {}
    for pod in sorted(waiting, key=lambda p: _natural(p["spec"]["hostname"])):
        jobs.setdefault(o.owner_uid(pod), []).append(pod)
    plan: Plan = []
    for uid, job_pods in jobs.items():
        brothers = [p for p in pods if o.owner_uid(p) == uid and not o.has_ended(p)]
        homes = {p["spec"]["nodeName"] for p in brothers if "nodeName" in p["spec"]}
        topology = job_pods[0]["metadata"]["annotations"].get(o.TOPOLOGY, "")
        nodes = placement.open_to(job_pods[0])
        fixed = next((o.label(nodes[name], topology) for name in homes if name in nodes), None)
        part = next(
            filter(None, (placement.place(job_pods, group) for group in placement.pools(job_pods, fixed))), None
        )
        if part is None:
            break
        plan += part
    else:
        _write_plan(tx, plan)
        return
    for placed, node in plan:
        placement.add(placed, node["metadata"]["name"], -1)
    for pod in waiting:
        message = f"0/{len(placement.open_to(pod))} nodes are available for all hosts of this JobSet at once"
        if o.set_condition(pod, "PodScheduled", False, "Unschedulable", message):
            tx.event(pod, "FailedScheduling", message, warning=True)
        tx.put(pod)


def _write_plan(tx: Transaction, plan: Plan) -> None:
    for pod, node in plan:
        pod["spec"]["nodeName"] = node["metadata"]["name"]
        pod["status"] |= {"podIP": _address(node), "hostIP": _address(node), "startTime": o.now()}
        o.set_condition(pod, "PodScheduled", True, "Scheduled")
        _set_container(pod, {"waiting": {"reason": "ContainerCreating"}})
        tx.put(pod)


def _set_container(pod: Obj, state: Obj, pid: int | None = None) -> None:
    container, running = pod["spec"]["containers"][0], "running" in state
    old = (pod["status"].get("containerStatuses") or [{}])[0]
    identity = f"process://{pid}" if pid else old.get("containerID", "")
    if "terminated" in state and identity:
        state["terminated"]["containerID"] = identity
    status = {
        **{"name": container["name"], "image": container.get("image", ""), "restartCount": 0, "state": state},
        **{"ready": running, "started": running},
    }
    pod["status"]["containerStatuses"] = [{**status, **({"containerID": identity} if identity else {})}]
    o.set_condition(pod, "Ready", running, "" if running else "ContainersNotReady")


def _is_asked(tx: Transaction, pod: Obj, facts: Obj) -> bool:
    """Return whether a host of the same attempt got SIGTERM: it may have told the others. Some report that."""
    keys = [f"{o.JOBSET}{key}" for key in ("jobset-uid", "restart-attempt")]
    jobsets = (jobset for jobset in tx.list("JobSet") if jobset["metadata"]["uid"] == o.label(pod, keys[0]))
    keys += [f"{o.JOBSET}job-key"] if any(map(has_elastic_slices, jobsets)) else []  # these do not wait for each other
    values = [o.label(pod, key) for key in keys]
    ending = (other for other in tx.list("Pod") if o.is_terminating(other))
    return facts.get("message") == _ASKED or any([o.label(other, key) for key in keys] == values for other in ending)


def _end(tx: Transaction, pod: Obj, facts: Obj) -> None:
    if facts["exitCode"] == _SAVED and not _is_asked(tx, pod, facts):  # else a restart would not be counted
        facts = facts | {"exitCode": 1, "message": f"the command ended with {_SAVED}, but no host was asked to end"}
    code = facts["exitCode"]
    reason = facts.get("reason") or ("Error" if code else "Completed")
    keys = ("exitCode", "signal", "message", "startedAt", "finishedAt")
    terminated = {key: facts[key] for key in keys if key in facts} | {"reason": reason}
    _set_container(pod, {"terminated": terminated}, facts.get("pid"))
    pod["status"]["phase"] = "Failed" if code else "Succeeded"
    o.set_condition(pod, "Ready", False, "PodFailed" if code else "PodCompleted")
    if tx.put(pod) and code:
        name = f" ({facts['message']})" if "message" in facts else ""
        tx.event(pod, "Failed", f"The host ended with exit code {code}{name}", warning=not o.is_terminating(pod))


def observe(tx: Transaction, hosts: Mapping[str, Host]) -> None:
    """Record the state of hosts in their pods."""
    for pod in tx.list("Pod"):
        host = hosts.get(pod["metadata"]["uid"], _ABSENT)
        if o.has_ended(pod):
            continue
        if host.state == "ended":
            _end(tx, pod, host.facts)
        elif host.state == "running" and pod["status"]["phase"] == "Pending":
            _set_container(pod, {"running": {"startedAt": host.facts["startedAt"]}}, host.facts["pid"])
            pod["status"]["phase"] = "Running"
            tx.put(pod)
            tx.event(pod, "Started", f"Started the host as process {host.facts['pid']}")


def _evict(tx: Transaction, pod: Obj, nodes: Mapping[str, Obj]) -> None:
    name = pod["spec"].get("nodeName")
    node = nodes.get(name)
    if name is None or o.is_true(pod, "DisruptionTarget") or (node and not o.is_fenced(node)):
        return
    reason = "DeletionByTaintManager" if node else "DeletionByPodGC"
    message = f"node {name} has a NoExecute taint" if node else f"node {name} no longer exists"
    o.set_condition(pod, "DisruptionTarget", True, reason, message)
    tx.event(pod, "Evicted", message, warning=True)
    delete_pod(tx, pod)


def _end_lost(tx: Transaction, pods: Sequence[Obj]) -> None:
    """Kill hosts that their peers have declared dead: they would not use a grace period."""
    attempt = ("jobset-uid", "restart-attempt", "job-restart-attempt")
    keys = (*(f"{o.JOBSET}{key}" for key in (*attempt, "job-index")), o.INDEX)
    lost = set()
    for pod in pods:
        ended = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {}).get("terminated", {})
        if match := _LOST.fullmatch(ended.get("message", "")):
            lost.add((*(o.label(pod, key) for key in keys[:3]), *match.groups()))
    for pod in pods:
        if lost and not o.has_ended(pod) and tuple(o.label(pod, key) for key in keys) in lost:
            delete_pod(tx, pod, 0, why="others of its attempt have declared it dead")


def _remember(tx: Transaction, pod: Obj) -> None:
    """Keep a pod's last state, and so its log; drop the oldest of the same host."""
    hostname = pod["spec"]["hostname"]
    same = [f for f in tx.list("FormerPod", pod["metadata"]["namespace"]) if f["spec"]["hostname"] == hostname]
    for old in sorted(same, key=lambda f: str(f["metadata"]["uid"]))[: max(0, len(same) + 1 - _FORMER_KEPT)]:
        tx.remove(old)
    tx.remember({**pod, "kind": "FormerPod"})


def reconcile(tx: Transaction, hosts: Mapping[str, Host]) -> None:
    """Evict and bind pods, and release those whose hosts have ended."""
    for uid, pods in by_jobset(tx).items():
        tx.settle(("pods", uid), (uid, "Node"), partial(_release, tx, uid, pods, hosts))
    tx.settle("bind", ("Pod", "Node", "JobSet", "Job"), partial(_bind, tx))


def _release(tx: Transaction, jobset_uid: str, pods: Sequence[Obj], hosts: Mapping[str, Host]) -> bool:
    """Evict the pods of a JobSet, and remove those whose hosts have ended; return whether it waits for hosts."""
    nodes = {node["metadata"]["name"]: node for node in tx.list("Node")}
    exists = jobset_uid in tx.uids("JobSet")
    _end_lost(tx, pods)
    for pod in pods:
        if not o.has_ended(pod):
            _evict(tx, pod, nodes)
        if not o.is_terminating(pod):
            continue
        if not o.has_ended(pod) and hosts.get(pod["metadata"]["uid"], _ABSENT).state == "absent":
            pod["status"]["phase"] = "Failed"  # it never started
            tx.put(pod)
        if o.has_ended(pod) and not pod["metadata"].get("finalizers"):
            tx.remove(pod)
            if exists and pod["status"].get("containerStatuses"):
                _remember(tx, pod)
    return any(o.is_terminating(pod) and not o.has_ended(pod) for pod in pods)
