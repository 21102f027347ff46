"""Changes of our manifest that might make a start cheaper; docs/adr/0013-start-at-scale.md has what they gain."""

from __future__ import annotations

import copy
from collections.abc import Callable

from bench.at_scale.cluster import ScaleCluster
from bench.at_scale.nodes import node_name, pool_name
from bench.at_scale.workload import Submit, changed, pod_spec
from xpk.api.base import Obj
from xpk.model.accelerators import NODEPOOL_LABEL

Change = Callable[[ScaleCluster, Obj, int], None]


def default_spreading(cluster: ScaleCluster, jobset: Obj, num_slices: int) -> None:
    """Let the scheduler spread the hosts by its default, as members of a service."""
    pod_spec(jobset).pop("topologySpreadConstraints", None)


def no_legacy_endpoints(cluster: ScaleCluster, jobset: Obj, num_slices: int) -> None:
    """Create the headless service with a port that no pod has: the controller of Endpoints then ignores the pods."""
    name, subdomain = jobset["metadata"]["name"], jobset["spec"]["network"]["subdomain"]
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"jobset.sigs.k8s.io/jobset-name": name},
        "ports": [{"name": "none", "port": 1, "targetPort": "none"}],
    }
    meta = {"name": subdomain, "namespace": "default"}
    cluster.api.apply({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})


def node_names(cluster: ScaleCluster, jobset: Obj, num_slices: int) -> None:
    """Name the nodes of each slice. This needs a replicated Job for each, of which Kueue allows 18."""
    (replicated,) = jobset["spec"]["replicatedJobs"]
    jobset["metadata"]["annotations"] = {}
    jobs = []
    for index in range(num_slices):
        pool = pool_name(index)
        job = copy.deepcopy({**replicated, "name": f"slice-job-{index}", "replicas": 1})
        terms = [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name(pool, host)]}]}
            for host in range(cluster.shape.hosts)
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        job["template"]["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}
        jobs.append(job)
    jobset["spec"]["replicatedJobs"] = jobs
    jobset["spec"]["coordinator"]["replicatedJob"] = "slice-job-0"


def node_pools(cluster: ScaleCluster, jobset: Obj, num_slices: int) -> None:
    """Name the node pool of each slice, without exclusive placement."""
    node_names(cluster, jobset, num_slices)
    for index, job in enumerate(jobset["spec"]["replicatedJobs"]):
        spec = job["template"]["spec"]["template"]["spec"]
        del spec["affinity"]
        spec["nodeSelector"] = {**spec["nodeSelector"], NODEPOOL_LABEL: pool_name(index)}


CANDIDATES: dict[str, Submit] = {
    function.__name__.replace("_", "-"): changed(function)
    for function in (default_spreading, no_legacy_endpoints, node_names, node_pools)
}
