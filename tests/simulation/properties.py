"""Properties that hold at every moment of a simulated cluster's life; docs/simulation.md lists them for readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.machine import slice_group
from tests.simulation.queues import Quotas, chips_of
from xpk.api.base import Obj
from xpk.local import objects as o
from xpk.local.store import Transaction

if TYPE_CHECKING:
    from tests.simulation.machine import Process
    from tests.simulation.world import World

_LINGER_SECONDS = 3600.0  # longer than the daemon is away, even if it is killed several times in a row
_PAUSE_SECONDS = 3900.0  # longer than that and the longest pause between attempts


class Violated(AssertionError):
    """A property does not hold."""


class Properties:
    """Checks of the state after each pass of the daemon, and of each start of a host."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ends: dict[str, str] = {}  # terminal states by the UID of JobSets
        self._reserved: set[str] = set()  # UIDs of workloads with a reservation
        self._evicted: set[str] = set()  # UIDs of workloads that still have one
        self._evicted_at: dict[str, float] = {}
        self._restarts: dict[str, int] = {}
        self._jobsets: set[str] = set()
        self._nodes: set[str] = set()
        self._ended_at: dict[str, float] = {}
        self._paused_at: dict[str, float] = {}
        self._bound: dict[str, int] = {}  # pods with a node, by group

    def fail(self, what: str) -> None:
        """Raise Violated."""
        raise Violated(f"after {self._world.now / 3600:.3f} h: {what}")

    def require(self, holds: bool, what: str) -> None:
        """Raise Violated unless it holds."""
        if not holds:
            self.fail(what)

    def on_launch(self, one: Process) -> None:
        """Check the start of a host."""
        name = one.pod["metadata"]["name"]
        self.require(one.jobset in self._jobsets, f"{name} starts, but its JobSet was deleted")
        self.require(one.jobset not in self._ends, f"{name} starts, but its JobSet has ended")
        size = self._world.machine.programs[one.group].size
        self.require(self._bound.get(one.group) == size, f"{name} starts before all hosts have nodes")
        for other in self._world.machine.living(one.group):
            self.require(other.attempt == one.attempt, f"{name} starts while an earlier attempt runs")
            self.require(other.place != one.place, f"{name} starts while the same host runs")
            self.require(other.deadline is None, f"{name} starts while hosts of an earlier start end")
        for other in self._world.machine.living():
            self.require(other.node != one.node, f"{name} starts on the node of another host")
            is_same_slice = (other.jobset, other.place[0]) == (one.jobset, one.place[0])
            if other.node not in self._nodes:
                continue  # nobody knows to which pool a deleted node belonged, also in Kubernetes
            self.require(is_same_slice or other.pool != one.pool, f"{name} starts in the node pool of another slice")

    def check(self, tx: Transaction, *, is_changed: bool) -> None:
        """Check a state of the store that is about to be committed, and whether it has changed since the last check."""
        if is_changed:
            self._check_store(tx)
        for jobset in tx.list("JobSet"):
            self._check_pause(jobset)
        self._check_evictions()
        self._check_hosts(tx)

    def _check_store(self, tx: Transaction) -> None:
        """Check what holds for a state of the store, whatever the time is."""
        jobsets = tx.list("JobSet")
        self._jobsets = {jobset["metadata"]["uid"] for jobset in jobsets}
        self._nodes = {node["metadata"]["name"] for node in tx.list("Node")}
        self._bound.clear()
        for pod in tx.list("Pod"):
            if "nodeName" in pod["spec"] and not o.has_ended(pod) and not o.is_terminating(pod):
                group = self._world.machine.group_of(pod)
                self._bound[group] = self._bound.get(group, 0) + 1
        for jobset in jobsets:
            self._check_end(jobset)
            self._check_restarts(tx, jobset)
        self._check_quota(tx)
        self._check_queue(tx)

    def _check_end(self, jobset: Obj) -> None:
        uid, status = jobset["metadata"]["uid"], jobset.get("status", {})
        before, now = self._ends.get(uid), status.get("terminalState")
        self.require(before in (None, now), f"{jobset['metadata']['name']} was {before} and is {now}")
        if now and not before:
            self._ends[uid], self._ended_at[uid] = now, self._world.now
            programs = [self._world.machine.programs[group] for group, *_ in self._restarts_of(jobset)]
            is_done = all(program.done >= program.work for program in programs)
            self.require(now != "Completed" or is_done, "a workload completes without its work")

    def _check_pause(self, jobset: Obj) -> None:
        """A pause between attempts ends, also if the clock was set back."""
        uid = jobset["metadata"]["uid"]
        if "nextAttemptAt" not in jobset.get("status", {}):
            self._paused_at.pop(uid, None)
            return
        seconds = self._world.now - self._paused_at.setdefault(uid, self._world.now)
        self.require(seconds < _PAUSE_SECONDS, f"{jobset['metadata']['name']} has paused for {seconds:.0f} s")

    def _restarts_of(self, jobset: Obj) -> list[tuple[str, int, int]]:
        """Return (group, restarts, counted restarts) of each group of a JobSet."""
        uid, status = jobset["metadata"]["uid"], jobset.get("status", {})
        (job,) = jobset["spec"]["replicatedJobs"]
        if slice_group(uid, 0) not in self._world.machine.programs:
            return [(uid, status.get("restarts", 0), status.get("restartsCountTowardsMax", 0))]
        counts = (status.get("replicatedJobsStatus") or [{}])[0]
        zeros = [0] * job["replicas"]
        both = zip(counts.get("jobRestarts", zeros), counts.get("jobRestartsCountTowardsMax", zeros), strict=True)
        return [(slice_group(uid, index), all_restarts, counted) for index, (all_restarts, counted) in enumerate(both)]

    def _check_restarts(self, tx: Transaction, jobset: Obj) -> None:
        """Each restart has one cause, is counted once, and only if a host has failed."""
        uid, name = jobset["metadata"]["uid"], jobset["metadata"]["name"]
        groups = self._restarts_of(jobset)
        limit = jobset["spec"]["failurePolicy"]["maxRestarts"]
        self.require(sum(counted for *_, counted in groups) <= limit, f"{name} has too many restarts")
        for number, (group, restarts, counted) in enumerate(groups):
            before = self._restarts.get(group, 0)
            self.require(restarts - before in (0, 1), f"{name} has {restarts} restarts after {before}")
            self._restarts[group] = restarts
            program = self._world.machine.programs[group]
            failed = len(program.failures)
            self.require(counted <= failed, f"{name}: {counted} of {failed} failures counted")
            self.require(restarts - counted <= len(program.asked), f"{name}: a failure was not counted")
            if restarts > before:
                of_slice = f" of {name}-slice-job-{number}" if group != uid else ""
                events = [e for e in tx.list("Event") if e["involvedObject"].get("uid") == uid]
                text = f"restart {restarts}{of_slice} ("
                causes = [e for e in events if e["message"].startswith(text) and "Policy" in e["reason"]]
                self.require(len(causes) == 1 == causes[0]["count"], f"{name}: {len(causes)} causes of a restart")

    def _check_quota(self, tx: Transaction) -> None:
        """No admission exceeds the quota; a smaller quota evicts nothing."""
        quotas, workloads = Quotas(tx), [w for w in tx.list("Workload") if not o.is_true(w, "Finished")]
        reserved = {w["metadata"]["uid"]: w for w in workloads if o.is_true(w, "QuotaReserved")}
        used = quotas.use(reserved.values())
        for name in {quotas.queue_of(reserved[uid]) for uid in reserved.keys() - self._reserved}:
            excess = quotas.excess(name, used)
            self.require(not excess, excess)
        self._reserved = {*reserved}
        evicted = {uid for uid, w in reserved.items() if o.is_true(w, "Evicted")}
        holding, fresh = (
            [reserved[uid] for uid in uids] for uids in (reserved.keys() - evicted, evicted - self._evicted)
        )
        wrong = quotas.wrongly_reclaimed(holding, fresh)
        self.require(not wrong, f"more is reclaimed from {wrong} than it has borrowed")
        self._evicted = evicted

    def _check_evictions(self) -> None:
        """Reclaimed quota becomes free: an evicted workload returns its reservation."""
        self._evicted_at = {uid: self._evicted_at.get(uid, self._world.now) for uid in self._evicted}
        late = [uid for uid, at in self._evicted_at.items() if self._world.now - at > _LINGER_SECONDS]
        self.require(not late, f"evicted workloads hold their quota: {late}")

    def _check_queue(self, tx: Transaction) -> None:
        """A workload waits only if it does not fit, even if those that it may preempt were preempted."""
        all_workloads = [w for w in tx.list("Workload") if not o.is_true(w, "Finished")]
        holding = [w for w in all_workloads if o.is_true(w, "QuotaReserved")]
        if any(o.is_true(w, "Evicted") for w in holding) or self._has_leaving(tx, holding):
            return
        quotas, total_pools = Quotas(tx), self._pools(tx)
        pools = total_pools - sum(slices_of(tx, w) for w in holding)
        for workload in all_workloads:
            slices, name = slices_of(tx, workload), workload["metadata"]["name"]
            if workload in holding or not workload["spec"].get("active", True) or slices > total_pools:
                continue
            weaker = quotas.may_preempt(workload, holding)
            used = quotas.use(w for w in holding if w not in weaker)
            fits = quotas.fits(quotas.queue_of(workload), used, chips_of(workload))
            fits &= slices <= pools + sum(slices_of(tx, w) for w in weaker)
            self.require(not fits, f"{name} waits, but fits")
            victims = quotas.reclaimable(workload, holding)
            is_free = victims is not None and slices <= pools + sum(slices_of(tx, w) for w in victims)
            self.require(not is_free, f"{name} does not reclaim the quota of its queue")

    def _has_leaving(self, tx: Transaction, holding: list[Obj]) -> bool:
        """Return whether hosts of a workload without a reservation still run."""
        owners = {o.owner_uid(workload) for workload in holding}
        return any(
            not o.has_ended(pod) and o.label(pod, f"{o.JOBSET}jobset-uid") not in owners for pod in tx.list("Pod")
        )

    def _pools(self, tx: Transaction) -> int:
        """Return the number of node pools whose nodes are all usable."""
        pools: dict[str, int] = {}
        for node in tx.list("Node"):
            if not o.is_fenced(node) and not node["spec"].get("unschedulable"):
                pool = o.label(node, "cloud.google.com/gke-nodepool")
                pools[pool] = pools.get(pool, 0) + 1
        return sum(count == self._world.hosts for count in pools.values())

    def _check_hosts(self, tx: Transaction) -> None:
        """A host does not run on without its pod, nor after the end of its JobSet."""
        known = {pod["metadata"]["uid"] for pod in tx.list("Pod")}
        for one in self._world.machine.living():
            if one.uid not in known:
                self.fail(f"{one.pod['metadata']['name']} runs without a pod")
            lingers = self._world.now - self._ended_at.get(one.jobset, self._world.now) > _LINGER_SECONDS
            self.require(not lingers, f"{one.pod['metadata']['name']} runs on after the end of its JobSet")


def slices_of(tx: Transaction, workload: Obj) -> int:
    """Return the slices that a workload requests."""
    jobset = next(j for j in tx.list("JobSet") if j["metadata"]["uid"] == o.owner_uid(workload))
    return sum(int(job["replicas"]) for job in jobset["spec"]["replicatedJobs"])
