"""Fixtures of the local control plane's tests: nodes, queues, JobSets, and waits with a deadline."""

from __future__ import annotations

from typing import Any, TypeVar

from tests.waiting import until
from xpk.api.base import Obj
from xpk.local.api import LocalApi

RESOURCE = "google.com/tpu"
ACCELERATOR = {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"}
KUEUE = "kueue.x-k8s.io/v1beta2"
SH = ["sh", "-c"]
T = TypeVar("T")


def node(pool: int, host: int, cluster: str = "c") -> Obj:
    """Return a ready host of a slice."""
    name = f"{cluster}-np-{pool}-{host}"
    labels = {"cloud.google.com/gke-nodepool": f"{cluster}-np-{pool}", "kubernetes.io/hostname": name, **ACCELERATOR}
    chips = {RESOURCE: "4"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {
            "capacity": chips,
            "allocatable": chips,
            "addresses": [{"type": "InternalIP", "address": f"127.16.{pool}.{host + 1}"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def kueue(kind: str, name: str, **rest: object) -> Obj:
    """Return an object of Kueue."""
    namespace = {"namespace": "default"} if kind == "LocalQueue" else {}
    return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name, **namespace}, **rest}


def cluster_queue(name: str, chips: int, preemption: Obj, **spec: object) -> Obj:
    """Return a ClusterQueue with a quota of one flavor."""
    quota = {"name": RESOURCE, "nominalQuota": chips}
    shared = {
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "preemption": preemption,
        "resourceGroups": [{"coveredResources": [RESOURCE], "flavors": [{"name": "flavor", "resources": [quota]}]}],
    }
    return kueue("ClusterQueue", name, spec=shared | spec)


def shared_objects() -> list[Obj]:
    """Return the flavor and the priorities of every cluster."""
    priorities = (("low", 250), ("medium", 500), ("high", 750))
    return [
        kueue("ResourceFlavor", "flavor", spec={"nodeLabels": ACCELERATOR}),
        *(kueue("WorkloadPriorityClass", name, value=value) for name, value in priorities),
    ]


def set_up(api: LocalApi, slices: int = 2, hosts: int = 2) -> None:
    """Create a cluster's nodes and queue."""
    preemption = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Never"}
    for obj in (
        *(node(pool, host) for pool in range(slices) for host in range(hosts)),
        *shared_objects(),
        cluster_queue("cluster-queue", slices * hosts * 4, preemption),
        kueue("LocalQueue", "multislice-queue", spec={"clusterQueue": "cluster-queue"}),
    ):
        api.apply(obj)


def jobset(
    name: str,
    script: str,
    *,
    slices: int = 2,
    hosts: int = 2,
    priority: str = "medium",
    max_restarts: int = 0,
    ttl: int = 3600,
    grace: int = 5,
    strategy: str = "BlockingRecreate",
    env: list[Obj] | None = None,
    queued: bool = True,
    command: list[str] | None = None,
) -> Obj:
    """Return a JobSet like that of manifests/jobset.yaml.j2."""
    labels = {"xpk.google.com/workload": name}
    queue = {"kueue.x-k8s.io/queue-name": "multislice-queue", "kueue.x-k8s.io/priority-class": priority}
    label = "metadata.labels['jobset.sigs.k8s.io/{}']"

    def down(key: str, path: str) -> Obj:
        return {"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    container = {
        "name": "host",
        "image": "none",
        "command": command or [*SH, script],
        "securityContext": {"allowPrivilegeEscalation": False},
        "resources": {"limits": {RESOURCE: 4}},
        "env": [
            {"name": "XPK_WORKLOAD", "value": name},
            down("XPK_JOB_ID", label.format("jobset-uid")),
            {"name": "XPK_COORDINATOR_ADDRESS", "value": f"{name}-slice-job-0-0.{name}:8476"},
            down("XPK_RESTART_ATTEMPT", label.format("restart-attempt")),
            down("MEGASCALE_NUM_SLICES", label.format("replicatedjob-replicas")),
            down("MEGASCALE_SLICE_ID", label.format("job-index")),
            down("TPU_WORKER_ID", "metadata.annotations['batch.kubernetes.io/job-completion-index']"),
            {
                "name": "TPU_WORKER_HOSTNAMES",
                "value": ",".join(f"{name}-slice-job-$(MEGASCALE_SLICE_ID)-{i}.{name}" for i in range(hosts)),
            },
            *(env or []),
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace,
        "automountServiceAccountToken": False,
        "nodeSelector": ACCELERATOR,
        "tolerations": [{"key": RESOURCE, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
    }

    def codes(*values: int) -> Obj:
        return {"action": "FailJob", "onExitCodes": {"containerName": "host", "operator": "In", "values": [*values]}}

    disrupted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    job = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": [disrupted, codes(143), codes(42)]},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    rules = [
        {
            "name": "hostDisrupted",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": ["PodFailurePolicy"],
            "onJobFailureMessagePatterns": ["condition DisruptionTarget", "exit code 143 "],
        },
        {"name": "fatalExitCode", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {**labels, **(queue if queued else {})},
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "ttlSecondsAfterFinished": ttl,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": name},
            "successPolicy": {"operator": "All"},
            "coordinator": {"replicatedJob": "slice-job", "jobIndex": 0, "podIndex": 0},
            "failurePolicy": {"maxRestarts": max_restarts, "restartStrategy": strategy, "rules": rules},
            "replicatedJobs": [{"name": "slice-job", "replicas": slices, "template": {"spec": job}}],
        },
    }


def elastic(obj: Obj) -> Obj:
    """Let the slices of a JobSet restart one by one, as in manifests/jobset.yaml.j2; return it."""
    policy = obj["spec"]["failurePolicy"]
    policy["restartStrategy"] = "Recreate"
    policy["rules"][0]["action"] = "RestartJobAndIgnoreMaxRestarts"
    policy["rules"].append({"name": "sliceFailed", "action": "RestartJob"})
    return obj


def status(api: LocalApi, name: str) -> Any:
    return api.get("JobSet", name)["status"]


def ended(api: LocalApi, name: str) -> str:
    """Wait for the end of a JobSet; return Completed or Failed."""
    return until(lambda: str(api.get("JobSet", name).get("status", {}).get("terminalState", "")))


def ended_in_haste(api: LocalApi, name: str) -> str:
    """Wait for the end of a JobSet that fails repeatedly, without the pauses between its attempts."""

    def found() -> str:
        hurry(api, name)
        return str(api.get("JobSet", name).get("status", {}).get("terminalState", ""))

    return until(found)


def hurry(api: LocalApi, name: str) -> None:
    """Start the next attempt of a JobSet immediately."""
    if api.get("JobSet", name).get("status", {}).get("shortAttempts"):
        api.patch("JobSet", name, {"status": {"shortAttempts": None, "nextAttemptAt": None}})


def running(api: LocalApi, name: str, hosts: int = 4, attempt: int | None = None) -> list[Obj]:
    """Wait until this number of hosts of a JobSet run, and return their pods."""
    selector = {"jobset.sigs.k8s.io/jobset-name": name}
    if attempt is not None:
        selector["jobset.sigs.k8s.io/restart-attempt"] = str(attempt)

    def found() -> list[Obj]:
        pods = [p for p in api.list("Pod", selector=selector) if "deletionTimestamp" not in p["metadata"]]
        pods = [p for p in pods if p["status"]["phase"] == "Running"]
        return pods if len(pods) == hosts else []

    return until(found)


def pid(pod: Obj) -> int:
    return int(pod["status"]["containerStatuses"][0]["containerID"].removeprefix("process://"))
