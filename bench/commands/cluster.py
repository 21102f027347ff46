"""A real API server with the objects of many running workloads.

The server itself stores one workload with one pod, with all defaults and managed fields. The others are copies of
them, written to etcd directly: 12,736 pods take seconds instead of minutes.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.commands.etcd import Etcd
from e2e.api_server import BINARIES, api_server, await_kinds
from tests.ports import free_ports
from xpk.api.base import Obj
from xpk.api.kubernetes import KubernetesApi
from xpk.model.accelerators import SliceShape
from xpk.model.specs import ClusterSpec, Target, WorkloadSpec
from xpk.render import render_queues, render_workload

NAME = "bench"
CACHE = BINARIES.parent
_MANIFESTS = ("jobset.yaml", "kueue.yaml")
_CREATED = "2026-11-01T08:00:00Z"
_PREFIX = "jobset.sigs.k8s.io"
_FOLDERS = {
    "JobSet": "jobset.x-k8s.io/jobsets",
    "Workload": "kueue.x-k8s.io/workloads",
    "Pod": "pods",
}


def missing() -> str:
    """Return how to get the programs that the benchmark needs, "" if they exist."""
    files = [
        *(BINARIES / name for name in ("etcd", "kube-apiserver", "kubectl")),
        *(CACHE / name for name in _MANIFESTS),
    ]
    lacking = [file.name for file in files if not file.exists()]
    return f'no {", ".join(lacking)}; get them with: eval "$(e2e/environment/up)"' if lacking else ""


@dataclass(frozen=True, slots=True)
class BenchCluster:
    """An API server with xpk's queue, and its etcd."""

    kubeconfig: Path
    api: KubernetesApi
    etcd: Etcd

    def add_workloads(self, count: int, shape: SliceShape, num_slices: int, prefix: str) -> list[Obj]:
        """Store running workloads `PREFIX0`, `PREFIX1`, ... with their pods; return all objects."""
        jobset, workload, pod = self._one(shape, num_slices, f"{prefix}-template")
        names = [f"{prefix}{index}" for index in range(count)]
        objects = [obj for name in names for obj in _copies(jobset, workload, pod, name, shape, num_slices)]
        self._store(objects)
        return objects

    def remove_all(self) -> None:
        """Remove all workloads, their pods, Secrets and code."""
        for folder in (*_FOLDERS.values(), "secrets/default", "configmaps/default"):
            self.etcd.remove(f"/registry/{folder}/")

    def _one(self, shape: SliceShape, num_slices: int, name: str) -> tuple[Obj, Obj, Obj]:
        """Return a JobSet, its Workload and its first pod, as the server stores them; they are removed again."""
        target = Target(emulated=False, sets_slice_environment=False, output_root="/output")
        spec = WorkloadSpec(
            name=name, shape=shape, num_slices=num_slices, command=("python", "train.py"), target=target,
            image="registry.example/team/trainer:1", user="ada",
        )  # fmt: skip
        jobset = self.api.create(render_workload(spec)[-1])
        template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        pod_set = {"name": "slice-job", "count": shape.hosts * num_slices, "template": template}
        meta = {"name": f"jobset-{name}", "namespace": "default", "ownerReferences": [_owner(jobset)]}
        workload = self.api.create(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": meta,
                "spec": {"queueName": spec.queue, "priority": 500, "podSets": [pod_set]},
            }
        )  # fmt: skip
        pod = self.api.create(_pod(jobset, template))
        parts = [(jobset, _jobset_status(num_slices)), (workload, _ADMITTED), (pod, _pod_status(pod))]
        stored = []
        for obj, status in parts:
            meta = obj["metadata"]
            # The path of a subresource, which `patch` appends to the name.
            self.api.patch(obj["kind"], f"{meta['name']}/status", {"status": status}, "default")
            stored.append(self.api.get(obj["kind"], meta["name"]))
        self.remove_all()
        return stored[0], stored[1], stored[2]

    def _store(self, objects: list[Obj]) -> None:
        """Write objects to etcd."""
        stored = {}
        for obj in objects:
            meta = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
            stored[f"/registry/{_FOLDERS[obj['kind']]}/{meta['namespace']}/{meta['name']}"] = {**obj, "metadata": meta}
        self.etcd.put(stored)


@contextmanager
def bench_cluster(folder: Path, shape: SliceShape, num_slices: int) -> Iterator[BenchCluster]:
    """Run an API server with the kinds of JobSet and Kueue and a queue for these slices, without controllers."""
    (etcd_port,) = free_ports(1)
    with api_server(folder, BINARIES, etcd_port=etcd_port) as kubeconfig:
        api = KubernetesApi(kubeconfig=kubeconfig)
        for crd in crds():
            api.create(crd)
        await_kinds(kubeconfig)
        for obj in render_queues(ClusterSpec(name=NAME, shape=shape, num_slices=num_slices)):
            api.create(obj)
        yield BenchCluster(kubeconfig, api, Etcd(etcd_port))


def crds() -> list[Obj]:
    """Return the CRDs of the releases, without the webhooks that convert between their versions."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = []
    for name in _MANIFESTS:
        for obj in yaml.load_all((CACHE / name).read_text(encoding="utf-8"), Loader=loader):
            if obj and obj["kind"] == "CustomResourceDefinition":
                obj["spec"].pop("conversion", None)
                found.append(obj)
    return found


def _copies(jobset: Obj, workload: Obj, pod: Obj, name: str, shape: SliceShape, num_slices: int) -> Iterator[Obj]:
    """Yield the objects of one workload, like the template's."""
    template, uid = jobset["metadata"]["name"], f"jobset-{name}"
    text = json.dumps([jobset, workload]).replace(template, name).replace(jobset["metadata"]["uid"], uid)
    yield from json.loads(text.replace(workload["metadata"]["uid"], f"workload-{name}"))
    pod = json.loads(json.dumps(pod).replace(template, name).replace(jobset["metadata"]["uid"], uid))
    for slice_id in range(num_slices):
        for host in range(shape.hosts):
            meta = copy.deepcopy(pod["metadata"])
            job = f"{name}-slice-job-{slice_id}"
            meta |= {"name": f"{job}-{host}-abcde", "uid": f"pod-{name}-{slice_id}-{host}"}
            meta["labels"] |= _labels(job, slice_id, host)
            meta["annotations"] |= _annotations(slice_id, host)
            meta["ownerReferences"][0] |= {"name": job, "uid": f"job-{job}"}
            spec = {**pod["spec"], "nodeName": f"gke-bench-np-{slice_id}-{host:04}", "hostname": f"{job}-{host}"}
            yield {**pod, "metadata": meta, "spec": spec}


def _labels(job: str, slice_id: int, host: int) -> dict[str, str]:
    index = {
        key: str(slice_id) for key in (f"{_PREFIX}/job-index", f"{_PREFIX}/job-global-index", f"{_PREFIX}/group-index")
    }
    of_job = {"job-name": job, "batch.kubernetes.io/job-name": job, "controller-uid": f"job-{job}"}
    return index | of_job | {"batch.kubernetes.io/job-completion-index": str(host)}


def _annotations(slice_id: int, host: int) -> dict[str, str]:
    return {f"{_PREFIX}/job-index": str(slice_id), "batch.kubernetes.io/job-completion-index": str(host)}


def _pod(jobset: Obj, template: Obj) -> Obj:
    """Return the first pod of a JobSet, with the labels and annotations that its controllers set."""
    name, uid = jobset["metadata"]["name"], jobset["metadata"]["uid"]
    job = f"{name}-slice-job-0"
    common = {
        f"{_PREFIX}/jobset-name": name, f"{_PREFIX}/jobset-uid": uid, f"{_PREFIX}/replicatedjob-name": "slice-job",
        f"{_PREFIX}/restart-attempt": "0", f"{_PREFIX}/job-key": "0123456789abcdef0123456789abcdef01234567",
    }  # fmt: skip
    meta = template.get("metadata") or {}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": "job", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-0-abcde",
            "namespace": "default",
            "labels": {**(meta.get("labels") or {}), **common, **_labels(job, 0, 0)},
            "annotations": {**(meta.get("annotations") or {}), **common, **_annotations(0, 0)},
            "ownerReferences": [owner],
            "finalizers": ["batch.kubernetes.io/job-tracking"],
        },
        "spec": {**template["spec"], "nodeName": "node"},
    }


def _pod_status(pod: Obj) -> Obj:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    containers = pod["spec"]["containers"]
    return {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": _CREATED} for kind in kinds],
        "hostIP": "10.0.0.1",
        "podIP": "10.0.0.1",
        "startTime": _CREATED,
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": f"{container['image']}@sha256:{'0' * 64}",
                "containerID": f"containerd://{'0' * 64}",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": _CREATED}},
            }
            for container in containers
        ],
    }


def _jobset_status(num_slices: int) -> Obj:
    counts = {
        "name": "slice-job",
        "ready": num_slices,
        "active": num_slices,
        "succeeded": 0,
        "failed": 0,
        "suspended": 0,
    }
    return {"restarts": 0, "restartsCountTowardsMax": 0, "replicatedJobsStatus": [counts]}


_ADMITTED: Obj = {
    "conditions": [
        {
            "type": kind, "status": "True", "reason": kind, "message": "admitted", "lastTransitionTime": _CREATED,
            "observedGeneration": 1,
        }
        for kind in ("QuotaReserved", "Admitted")
    ],
}  # fmt: skip


def _owner(jobset: Obj) -> Obj:
    meta = jobset["metadata"]
    return {"apiVersion": jobset["apiVersion"], "kind": "JobSet", "name": meta["name"], "uid": meta["uid"]}
