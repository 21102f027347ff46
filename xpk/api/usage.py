"""Use of chips from objects: what a workload requests, and what the nodes and queues of a cluster offer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from xpk.api.base import Obj
from xpk.api.cluster_queues import allotments
from xpk.api.quantities import requests
from xpk.model import names
from xpk.model.accelerators import CHIP_RESOURCES, NODEPOOL_LABEL, find_shape, type_of_nodes
from xpk.model.errors import UsageError
from xpk.model.usage import MICROSECONDS, Holding, Record, State, Supply, team_of


@runtime_checkable
class RecordsUsage(Protocol):
    """An API server that keeps the usage ledger of its cluster by itself."""

    @property
    def usage_folder(self) -> str:
        """Return the folder of the ledger."""
        ...

    def open_usage(self) -> Sequence[Record]:
        """Return what is recorded but not in the ledger yet; intervals that have not ended end now."""
        ...


def holding_of(
    jobset: Obj, local_queues: Iterable[Obj], *, state: State, chips: int | None = None, reason: str = ""
) -> Holding:
    """Return the holding of a JobSet; `chips` [default: those of all its hosts]."""
    meta = jobset["metadata"]
    namespace, annotations = str(meta.get("namespace") or "default"), meta.get("annotations") or {}
    queue = str((meta.get("labels") or {}).get(names.QUEUE_LABEL, ""))
    queues = [str(item["metadata"]["name"]) for item in local_queues if item["metadata"].get("namespace") == namespace]
    return Holding(
        uid=str(meta["uid"]),
        workload=str(meta["name"]),
        namespace=namespace,
        queue=queue,
        team=team_of(queue, namespace, queues, names.QUEUE),
        user=str(annotations.get(names.USER_ANNOTATION, "")),
        accelerator_type=accelerator_type_of(jobset),
        chips=chips_of(jobset) if chips is None else chips,
        state=state,
        created=microseconds_of(meta.get("creationTimestamp")),
        reason=reason,
        output_dir=str(annotations.get(names.OUTPUT_ANNOTATION, "")),
    )


def microseconds_of(stamp: object) -> int:
    """Return a time of an object in Unix microseconds, 0 for an invalid one."""
    try:
        time = datetime.fromisoformat(str(stamp))
    except ValueError:
        return 0
    return max(0, round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * MICROSECONDS))


def accelerator_type_of(jobset: Obj) -> str:
    """Return the accelerator type of a JobSet's hosts, "" if unknown."""
    annotations = jobset["metadata"].get("annotations") or {}
    selectors = [job["template"]["spec"]["template"]["spec"].get("nodeSelector") for job in _jobs(jobset)]
    return str(annotations.get(names.TYPE_ANNOTATION) or type_of_nodes((selectors and selectors[0]) or {}))


def chips_of(jobset: Obj) -> int:
    """Return the chips of all hosts of a JobSet; a host without accelerators counts as one chip."""
    total = 0
    for job in _jobs(jobset):
        spec = job["template"]["spec"]
        hosts = int(job.get("replicas", 1)) * int(spec.get("parallelism", 1))
        total += hosts * chips_of_pod(spec["template"]["spec"])
    return total


def chips_of_pod(pod_spec: Obj) -> int:
    """Return the chips that a pod requests; 1 if it requests none, as the shapes of CPU types count."""
    amounts = requests(pod_spec)
    return int(sum(amounts.get(resource, 0) for resource in CHIP_RESOURCES)) or 1


def quota_names(local_queues: Iterable[Obj]) -> dict[tuple[str, str], str]:
    """Return the name of the quota that workloads of a queue use, by the namespace and name of the LocalQueue.

    They differ for queues of other tools.
    """
    return {
        (str(queue["metadata"].get("namespace") or ""), str(queue["metadata"]["name"])): _quota_name(cluster_queue)
        for queue in local_queues
        if (cluster_queue := str((queue.get("spec") or {}).get("clusterQueue") or ""))
    }


def supply_of(nodes: Iterable[Obj], cluster_queues: Iterable[Obj]) -> Supply:
    """Return the chips of the nodes of slices, and the quotas of queues."""
    chips: dict[str, int] = {}
    pools: dict[str, set[str]] = {}
    out_of_service = 0
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        if (kind := _type_of_node(labels)) is None:
            continue
        amount = _chips_of_node(node, kind)
        chips[kind] = chips.get(kind, 0) + amount
        pools.setdefault(kind, set()).add(str(labels[NODEPOOL_LABEL]))
        out_of_service += 0 if _is_in_service(node) else amount
    slices = {kind: len(members) for kind, members in pools.items()}
    return Supply(chips=chips, slices=slices, quotas=_quotas(cluster_queues), out_of_service=out_of_service)


def _jobs(jobset: Obj) -> Sequence[Obj]:
    jobs: Sequence[Obj] = jobset["spec"].get("replicatedJobs") or []
    return jobs


def _type_of_node(labels: Mapping[str, str]) -> str | None:
    """Return the accelerator type of a slice's node, "" if unknown; None for other nodes, which pools also have."""
    if NODEPOOL_LABEL not in labels:
        return None
    if kind := labels.get(names.TYPE_ANNOTATION) or type_of_nodes(labels):
        return kind
    return "" if "cloud.google.com/gke-tpu-accelerator" in labels else None


def _chips_of_node(node: Obj, kind: str) -> int:
    status = node.get("status") or {}
    allocatable = status.get("allocatable") or status.get("capacity") or {}
    amounts = requests({"containers": [{"resources": {"limits": allocatable}}]})
    offered = int(sum(amounts.get(resource, 0) for resource in CHIP_RESOURCES))
    try:
        return offered or find_shape(kind).chips_per_host
    except UsageError:
        return offered


def _is_in_service(node: Obj) -> bool:
    spec, conditions = node.get("spec") or {}, (node.get("status") or {}).get("conditions") or []
    is_ready = any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)
    is_fenced = any(taint.get("effect") == "NoExecute" for taint in spec.get("taints") or ())
    return is_ready and not spec.get("unschedulable") and not is_fenced


def _quotas(cluster_queues: Iterable[Obj]) -> dict[str, int]:
    """Return the quota of each queue in chips, by the name that workloads use."""
    quotas: dict[str, int] = {}
    for queue in cluster_queues:
        name = str(queue["metadata"]["name"])
        amounts = [
            int(allotment.nominal)
            for (_, resource), allotment in allotments(queue).items()
            if resource in CHIP_RESOURCES
        ]
        quotas[_quota_name(name)] = sum(amounts)
    return quotas


def _quota_name(cluster_queue: str) -> str:
    return names.QUEUE if cluster_queue == names.CLUSTER_QUEUE else cluster_queue
