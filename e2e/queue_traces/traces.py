"""Random traces of workloads, and the objects that Kueue gets of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from typing import Any

from xpk.api.base import Obj
from xpk.local.quota_model import model_of
from xpk.local.simulation import Job, Simulation

API = "kueue.x-k8s.io/v1beta2"
RESOURCE = "google.com/tpu"
STEP_SECONDS = 10.0  # of simulated time
LOOP = 6  # preemptions in a step, after which a trace counts as a loop


@dataclass(frozen=True, slots=True)
class Step:
    """One step: a workload is submitted, or (`name` is "") one of the running workloads ends."""

    name: str = ""
    queue: str = ""
    slices: int = 0
    priority: int = 0
    choice: float = 0.0  # which of the running workloads ends


@dataclass(slots=True)
class Trace:
    """A trace with its queues, and the first step in which Kueue and the simulation differ.

    `decisions`: admissions and preemptions in all steps, of Kueue or the simulation or both; `equal`: those of both.
    """

    number: int
    queues: list[Obj]
    steps: list[Step]
    simulation: Simulation
    uids: dict[str, str]  # by name
    running: set[str] = field(default_factory=set)  # on Kueue
    ran: frozenset[str] = frozenset()  # on Kueue, before this step
    preempted: list[str] = field(default_factory=list)  # on Kueue, in this step
    equal: int = 0
    decisions: int = 0
    compared: int = 0  # steps
    preemptions: int = 0  # on Kueue, in all steps
    difference: str = ""
    cause: str = ""  # of the difference, or why the trace ended early

    @property
    def prefix(self) -> str:
        """Return what the names of its objects begin with."""
        return f"t{self.number}-"


def make_trace(number: int, seed: int, count: int) -> Trace:
    """Return a trace of `count` steps."""
    rng = Random(f"{seed}/{number}")
    prefix, total = f"t{number}-", rng.randint(2, 8)
    queues, left = [], total
    how_many = rng.choice((1, 1, 2, 2, 3))
    for index in range(how_many):
        share = left if index == how_many - 1 else rng.randint(0, left)
        left -= share
        queues.append(_cluster_queue(rng, f"{prefix}q{index}", f"{prefix}cohort", share))
    steps, submitted = [], 0
    for _ in range(count):
        if submitted < 2 or rng.random() < 0.6:
            queue = rng.choice(queues)["metadata"]["name"]
            size, priority = rng.randint(1, max(1, total - 1)), rng.choice((100, 250, 500, 750))
            steps.append(Step(f"{prefix}w{submitted}", queue, size, priority))
            submitted += 1
        else:
            steps.append(Step(choice=rng.random()))
    jobs, uids = list[Job](), dict[str, str]()
    for at, step in enumerate(steps):
        if step.name:
            uids[step.name] = f"{at:04d}/{step.name}"
            needs = {RESOURCE: step.slices}
            jobs.append(
                Job(uid=uids[step.name], queue=step.queue, priority=step.priority, needs=needs, seconds=math.inf,
                    arrival=at * STEP_SECONDS)
            )  # fmt: skip
    models = {queue["metadata"]["name"]: model_of(queue) for queue in queues}
    return Trace(number, queues, steps, Simulation(models, jobs, stop_seconds=1.0), uids)


def _cluster_queue(rng: Random, name: str, cohort: str, nominal: int) -> Obj:
    quota: dict[str, Any] = {"name": RESOURCE, "nominalQuota": nominal}
    if rng.random() < 0.5:
        quota["borrowingLimit"] = rng.randint(0, 3)
    if rng.random() < 0.5:
        quota["lendingLimit"] = rng.randint(0, nominal)
    reclaim = rng.choice(("Any", "Any", "LowerPriority", "Never"))
    borrowing = "Never" if reclaim == "Never" else rng.choice(("LowerPriority", "Never"))
    preemption = {
        "withinClusterQueue": rng.choice(("LowerPriority", "LowerPriority", "Never")),
        "reclaimWithinCohort": reclaim,
        "borrowWithinCohort": {"policy": borrowing},
    }
    return queue_object(name, quota, {"cohortName": cohort, "preemption": preemption})


def queue_object(name: str, quota: dict[str, Any], others: dict[str, Any]) -> Obj:
    """Return a ClusterQueue with a quota and other fields of its spec."""
    groups = [{"coveredResources": [RESOURCE], "flavors": [{"name": "flavor", "resources": [quota]}]}]
    spec = {"namespaceSelector": {}, "queueingStrategy": "BestEffortFIFO", **others, "resourceGroups": groups}
    return {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


def local_queue(name: str) -> Obj:
    """Return the LocalQueue of the ClusterQueue of this name."""
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": API, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": name}}


def workload(name: str, queue: str, slices: int, priority: int) -> Obj:
    """Return a Workload of a LocalQueue, which no job owns."""
    container = {"name": "host", "image": "none", "resources": {"requests": {RESOURCE: "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    pod_sets = [{"name": "main", "count": slices, "template": template}]
    metadata = {"name": name, "namespace": "default"}
    spec = {"queueName": queue, "priority": priority, "podSets": pod_sets}
    return {"apiVersion": API, "kind": "Workload", "metadata": metadata, "spec": spec}
