"""The objects of an earlier version in a Kubernetes cluster, with what JobSet, Kueue and the kubelet add to them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from tests.api.scripted_server import kubeconfig
from tests.capacity.adapted.nodes import node
from tests.capacity.machine import CONTROLLER, _react
from tests.jobs.objects import NOW, RUNNING, workload
from tests.upgrade.kubernetes_server import serving
from tests.upgrade.release import Release
from xpk.api.base import Obj
from xpk.testing import FakeApi

OBJECTS, EXPECTED = "kubernetes.json", "kubernetes-output.json"
PHASES = {"ended": "Succeeded", "broken": "Failed", "runs": "Running", "waits": "Queued", "paused": "Suspended"}
_VERSIONS = {"jobset": "v0.12.0", "kueue": "v0.19.2"}
_KUEUE = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"}
_DRIVER = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "CSIDriver",
    "metadata": {"name": "gcsfuse.csi.storage.gke.io"},
}
_SERVER = "http://server.invalid"
_READS = {
    "list": ("workload", "list", "--all-namespaces"),
    "cluster": ("cluster", "describe", "prod"),
    "queues": ("queue", "list", "--cluster", "prod"),
    "storages": ("storage", "list", "--cluster", "prod"),
}


def manifests(folder: Path) -> list[str]:
    """Write small manifests of the controllers; return the options of `cluster adapt` for them."""
    options = []
    for name, version in _VERSIONS.items():
        file = folder / f"{name}.yaml"
        file.write_text(CONTROLLER.format(name=name, version=version), encoding="utf-8")
        options += [f"--{name}-manifest", str(file)]
    return options


def record(release: Release, to: Path) -> None:
    """Adapt a cluster and create workloads, a storage and a queue; keep all objects, and what the version told."""
    names = [(f"tpu-np-{pool}-{host}", f"tpu-np-{pool}") for pool in range(4) for host in range(2)]
    nodes = [node(name, pool, 4, providerID="gce://p/z/i") for name, pool in names]
    api = FakeApi([*nodes, _DRIVER], react=_react)
    (release.folder / ".kube").mkdir()
    with serving(api) as url:
        kubeconfig(release.folder, url).rename(release.folder / ".kube" / "config")
        settings = ["--context", "x", "--output-root", "/mnt/runs", *manifests(release.folder)]
        release.xpk("cluster", "adapt", "prod", *settings)
        release.xpk("queue", "create", "red", "--namespace", "team-red", "--quota", "1", "--create-namespace", "--yes")
        place = ["--type", "gcsfuse", "--bucket", "corpus", "--mount-point", "/data", "--readonly", "true"]
        release.xpk("storage", "attach", "corpus", *place)
        _create(release)
        for jobset in api.list("JobSet", None):
            _act_as_controllers(api, jobset, PHASES[jobset["metadata"]["name"]])
        told = {key: json.loads(release.xpk(*words, "-o", "json")) for key, words in _READS.items()}
        kept = (release.folder / "state" / "adapted" / "prod" / "kubeconfig").read_text(encoding="utf-8")
    objects = [_without_secret(obj) for _, obj in sorted(api.objects.items())]
    recorded = {"kubeconfig": yaml.safe_load(kept.replace(url, _SERVER)), "objects": objects}
    (to / OBJECTS).write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    (to / EXPECTED).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _create(release: Release) -> None:
    code = release.folder / "code"
    code.mkdir()
    (code / "main.py").write_text("print('hello')\n", encoding="utf-8")
    for name, *options in (
        ("ended", "--command", "python main.py", "--script-dir", str(code)),
        ("broken", "--command", "exit 42", "--env-from-secret", "TOKEN=hub:token"),
        ("runs", "--num-slices", "2", "--command", "sleep 1000", "--max-restarts", "3", "--storage", "corpus"),
        ("waits", "--num-slices", "4", "--docker-image", "trainer:1", "--", "--config", "tiny"),
        ("paused", "--command", "sleep 1000", "--priority", "low", "--docker-image", "python:3.11"),
    ):
        release.xpk("workload", "create", name, *options)


def _act_as_controllers(api: FakeApi, jobset: Obj, phase: str) -> None:
    """Add what JobSet, Kueue and the kubelet would write for a workload in this phase."""
    name, uid = jobset["metadata"]["name"], jobset["metadata"]["uid"]
    slices = jobset["spec"]["replicatedJobs"][0]["replicas"]
    admitted = phase in ("Succeeded", "Failed", "Running")
    conditions: dict[str, Any] = {
        "QuotaReserved": ("True", "QuotaReserved", "") if admitted else ("False", "Pending", "insufficient quota"),
        **({"Admitted": ("True", "Admitted", "")} if admitted else {}),
        **({"Finished": ("True", phase, "")} if phase in ("Succeeded", "Failed") else {}),
    }
    uses = {"uses": 8 * slices} if admitted else {}
    kueue: Obj = _KUEUE | workload(name, uid, **conditions, **uses)
    kueue["spec"]["active"] = phase != "Suspended"
    api.create(kueue)
    api.patch("JobSet", name, {"spec": {"suspend": not admitted}, "status": _status(phase, slices)})
    if admitted:
        for index in range(2 * slices):
            api.create(_pod(jobset, *divmod(index, 2), phase))


def _status(phase: str, slices: int) -> Obj:
    ended = {"Succeeded": ("Completed", "AllJobsCompleted"), "Failed": ("Failed", "FailJobSetFailurePolicyAction")}
    counts = {key: 0 for key in ("active", "failed", "ready", "succeeded", "suspended")}
    counts[{"Succeeded": "succeeded", "Failed": "failed", "Running": "ready"}.get(phase, "suspended")] = slices
    status: Obj = {"restarts": 0, "replicatedJobsStatus": [{"name": "slice-job", **counts}]}
    if phase in ended:
        kind, reason = ended[phase]
        condition = {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": NOW}
        status |= {"terminalState": kind, "conditions": [condition]}
    return status


def _pod(jobset: Obj, slice_id: int, host: int, phase: str) -> Obj:
    meta, template = jobset["metadata"], jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    code = {"Succeeded": 0, "Failed": 42}.get(phase)
    ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "startedAt": NOW, "finishedAt": NOW}
    status = RUNNING if code is None else {"phase": phase, "containerStatuses": [{"state": {"terminated": ended}}]}
    labels = {
        "jobset-uid": meta["uid"],
        "jobset-name": meta["name"],
        "job-index": str(slice_id),
        "restart-attempt": "0",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name']}-slice-job-{slice_id}-{host}-abcde",
            "namespace": meta["namespace"],
            "labels": {f"jobset.sigs.k8s.io/{key}": value for key, value in labels.items()},
            "annotations": {"batch.kubernetes.io/job-completion-index": str(host)},
        },
        "spec": template["spec"] | {"nodeName": f"tpu-np-{slice_id}-{host}"},
        "status": status,
    }


def _without_secret(obj: Obj) -> Obj:
    if obj["kind"] != "Secret":
        return obj
    hidden = {key: base64.b64encode(b"replaced").decode() for key in (obj.get("data") or {})}
    return (
        obj | {"data": hidden} | ({"stringData": dict.fromkeys(obj["stringData"], "x")} if "stringData" in obj else {})
    )


def load(version: Path) -> tuple[FakeApi, Any]:
    """Return an API server with the recorded objects, and what the earlier version told of them."""
    objects = json.loads((version / OBJECTS).read_text(encoding="utf-8"))["objects"]
    return FakeApi(objects, react=_react), json.loads((version / EXPECTED).read_text(encoding="utf-8"))


def remember(version: Path, state: Path, url: str) -> None:
    """Put the earlier version's connection to the cluster into a state folder, for the server at `url`."""
    content = json.loads((version / OBJECTS).read_text(encoding="utf-8"))["kubeconfig"]
    folder = state / "adapted" / "prod"
    folder.mkdir(parents=True)
    (folder / "kubeconfig").write_text(yaml.safe_dump(content).replace(_SERVER, url), encoding="utf-8")
