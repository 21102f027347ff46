"""Queues that cannot be simulated, because they use what the simulated queue does not know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xpk.api.base import Obj, Objs
from xpk.api.cluster_queues import admission_checks, allotments, cohort_of, type_of
from xpk.model.accelerators import type_of_nodes

_POLICIES = ("Never", "LowerPriority", "Any")
_ELASTIC = "kueue.x-k8s.io/elastic-job"


def refusals(
    cluster_queues: Objs, cohorts: Objs, flavors: Objs, workloads: Sequence[tuple[Obj, str]]
) -> dict[str, str]:
    """Return the reason for each ClusterQueue that cannot be simulated, by its name.

    `workloads`: those that have not finished, with their ClusterQueues. Queues of a cohort depend on each other.
    """
    topologies = {flavor["metadata"]["name"] for flavor in flavors if (flavor.get("spec") or {}).get("topologyName")}
    trees = {cohort["metadata"]["name"]: reason for cohort in cohorts if (reason := _of_cohort(cohort))}
    reasons = dict[str, str]()
    for queue in cluster_queues:
        of_queue = [workload for workload, place in workloads if place == queue["metadata"]["name"]]
        problems = [
            *_of_queue(queue, topologies),
            *(reason for item in of_queue for reason in _of_workload(item, queue)),
        ]
        if cohort_of(queue) in trees:
            problems.append(trees[cohort_of(queue)])
        if problems:
            reasons[queue["metadata"]["name"]] = problems[0]
    return _spread(cluster_queues, reasons)


def _spread(cluster_queues: Objs, reasons: dict[str, str]) -> dict[str, str]:
    """Return the reasons with those of queues that share a cohort with a refused one."""
    first = dict[str, str]()
    for queue in cluster_queues:
        if queue["metadata"]["name"] in reasons and cohort_of(queue):
            first.setdefault(cohort_of(queue), queue["metadata"]["name"])
    lenders = {queue["metadata"]["name"]: first.get(cohort_of(queue)) for queue in cluster_queues}
    spread = {name: f"it shares a cohort with '{other}'" for name, other in lenders.items() if other}
    return spread | reasons


def _of_queue(queue: Obj, topologies: Iterable[str]) -> Iterator[str]:
    spec, preemption = queue["spec"], queue["spec"].get("preemption") or {}
    listed = [*(check["name"] for check in admission_checks(queue)), *(spec.get("admissionChecks") or [])]
    if listed:
        yield f"it uses admission checks ({', '.join(listed)})"
    if (queue.get("status") or {}).get("fairSharing") or spec.get("admissionScope"):
        yield "it uses fair sharing"
    if spec.get("stopPolicy", "None") != "None":
        yield f"it is stopped ({spec['stopPolicy']})"
    if spec.get("queueingStrategy", "BestEffortFIFO") != "BestEffortFIFO":
        yield f"its queueing strategy is {spec['queueingStrategy']}"
    borrowing = preemption.get("borrowWithinCohort") or {}
    for policy in (
        preemption.get("withinClusterQueue"),
        preemption.get("reclaimWithinCohort"),
        borrowing.get("policy"),
    ):
        if policy not in (None, *_POLICIES):
            yield f"its preemption policy is {policy}"
    if borrowing.get("maxPriorityThreshold") is not None:
        yield "its preemption while borrowing has a priority threshold"
    placed = sorted({flavor for flavor, _ in allotments(queue)} & {*topologies})
    if placed:
        yield f"flavor '{placed[0]}' places hosts by topology"


def _of_cohort(cohort: Obj) -> str:
    spec, name = cohort.get("spec") or {}, cohort["metadata"]["name"]
    if spec.get("parentName"):
        return f"its cohort '{name}' is part of cohort '{spec['parentName']}'"
    if spec.get("resourceGroups"):
        return f"its cohort '{name}' has a quota of its own"
    return ""


def _of_workload(workload: Obj, queue: Obj) -> Iterator[str]:
    meta = workload["metadata"]
    name = f"workload '{meta.get('namespace', 'default')}/{meta['name']}'"
    pod_sets = workload["spec"].get("podSets") or []
    if any(pod_set.get("topologyRequest") for pod_set in pod_sets):
        yield f"{name} requests a topology"
    if any(pod_set.get("minCount") is not None for pod_set in pod_sets):
        yield f"{name} may be admitted in part"
    if (meta.get("annotations") or {}).get(_ELASTIC) == "true" or workload["spec"].get("preemptionGates"):
        yield f"{name} changes its size or is gated"
    if not (workload.get("status") or {}).get("admission"):
        kinds = {type_of_nodes(item["template"]["spec"].get("nodeSelector") or {}) for item in pod_sets}
        flavors = {flavor for flavor, _ in allotments(queue)}
        if len(flavors) > 1 and len({flavor for flavor in flavors if {type_of(flavor) or flavor} == kinds}) != 1:
            yield f"{name} may use several flavors ({', '.join(sorted(flavors))})"
