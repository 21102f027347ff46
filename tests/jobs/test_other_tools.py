"""Workloads of gcluster and of Google's xpk, with the objects in `other_tools/`: shown, logged, awaited and deleted."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Xpk
from tests.cli.conftest import state as state
from tests.cli.conftest import xpk as xpk
from tests.jobs.objects import NOW, Obj, workload
from tests.upgrade.kubernetes_server import serving
from xpk.api.base import Change, LogLine
from xpk.api.paths import container_of
from xpk.jobs import lifecycle
from xpk.jobs.deletion import carry_out, plan_all, plan_named
from xpk.jobs.host_logs import LogQuery
from xpk.jobs.logs import follow_logs, read_logs
from xpk.jobs.status.reader import find, find_all
from xpk.model.errors import ConflictError
from xpk.model.status import Phase
from xpk.testing import FakeApi

FOLDER = Path(__file__).with_name("other_tools")
NAMES = {
    "gcluster": "llama-train",
    "gcluster-parallel": "parallel",
    "gcluster-pathways": "pathways",
    "google-xpk": "theirs",
}
UP = {"ready": True, "state": {"running": {"startedAt": NOW}}}


def manifest(file: str) -> Obj:
    """Return a JobSet as the API server stores it."""
    obj: Obj = yaml.safe_load((FOLDER / f"{file}.yaml").read_text(encoding="utf-8"))
    obj["metadata"] |= {"namespace": "default", "uid": f"uid-{obj['metadata']['name']}", "creationTimestamp": NOW}
    obj["metadata"]["managedFields"] = [{"manager": "kubectl-client-side-apply", "operation": "Update"}]
    return obj | {"status": {"restarts": 0}}


def pods_of(jobset: Obj, *, sidecar: bool = False) -> Iterator[Obj]:
    """Yield the running pods of a JobSet, as the JobSet and Job controllers create them."""
    name, number = jobset["metadata"]["name"], 0
    for job in jobset["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        for index in range(job["replicas"]):
            for host in range(spec["parallelism"]):
                pod = copy.deepcopy(spec["template"])
                labels = {
                    "jobset.sigs.k8s.io/jobset-name": name,
                    "jobset.sigs.k8s.io/jobset-uid": jobset["metadata"]["uid"],
                    "jobset.sigs.k8s.io/replicatedjob-name": job["name"],
                    "jobset.sigs.k8s.io/job-index": str(index),
                    "jobset.sigs.k8s.io/job-global-index": str(number),
                    "jobset.sigs.k8s.io/restart-attempt": "0",
                    "batch.kubernetes.io/job-completion-index": str(host),
                }
                containers = pod["spec"]["containers"]
                if sidecar:  # older versions of GKE put it first
                    containers.insert(0, {"name": "gke-gcsfuse-sidecar", "image": "sidecar"})
                meta = pod.get("metadata") or {}
                yield {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {
                        **meta,
                        "name": f"{name}-{job['name']}-{index}-{host}-abcde",
                        "namespace": "default",
                        "uid": f"{name}-{number}-{host}",
                        "creationTimestamp": NOW,
                        "labels": {**(meta.get("labels") or {}), **labels},
                    },
                    "spec": pod["spec"] | {"nodeName": f"node-{number}-{host}"},
                    "status": {
                        "phase": "Running",
                        "containerStatuses": [{"name": one["name"], **copy.deepcopy(UP)} for one in containers],
                    },
                }
            number += 1


class Cluster(FakeApi):
    """An API server with running workloads of other tools; the log of a container is its name."""

    watched: Mapping[str, str] | None = None

    def logs(self, pod: Obj, **_: Any) -> Iterator[LogLine]:
        """Yield the name of the container that is read, and of its pod."""
        yield LogLine(datetime(2026, 1, 1, tzinfo=UTC), f"{pod['metadata']['name']} {container_of(pod)}")

    def watch(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[tuple[Change, Obj]]:
        """Yield the objects; then all workloads end."""
        self.watched = selector
        yield from super().watch(kind, namespace, selector, timeout=timeout)
        for obj in self.list("JobSet"):
            self.patch("JobSet", obj["metadata"]["name"], {"status": {"conditions": [ended()]}})
            if not selector or selector.items() <= obj["metadata"]["labels"].items():
                yield "MODIFIED", self.get("JobSet", obj["metadata"]["name"])


def ended() -> Obj:
    return {"type": "Completed", "status": "True", "lastTransitionTime": NOW}


def cluster(*files: str, sidecar: bool = False) -> Cluster:
    """Return a server with these workloads, admitted and running."""
    objects: list[Obj] = []
    for file in files:
        jobset = manifest(file)
        name, uid = jobset["metadata"]["name"], jobset["metadata"]["uid"]
        admitted = workload(name, uid, Admitted=("True", "Admitted", ""), QuotaReserved=("True", "QuotaReserved", ""))
        objects += [jobset, admitted | {"kind": "Workload"}, *pods_of(jobset, sidecar=sidecar)]
    return Cluster(objects)


@pytest.mark.parametrize(
    ("file", "maker", "kind", "priority", "shape", "command"),
    [
        ("gcluster", "gcluster", "v6e-16", "high", (2, 4, 8), "python3 train.py"),
        ("gcluster-parallel", "gcluster", "tpu7x-16", "", (1, 2, 2), "python3 train.py"),
        ("gcluster-pathways", "gcluster", "v5litepod-16", "", (3, 4, 9), "python3 app.py"),
        ("google-xpk", "xpk", "v5litepod-16", "low", (2, 4, 8), "echo XPK Start: $(date); python3 train.py"),
    ],
)
def test_a_workload_of_another_tool_is_read(
    file: str, maker: str, kind: str, priority: str, shape: tuple[int, int, int], command: str
) -> None:
    status = find(cluster(file), NAMES[file])
    assert (status.maker, status.accelerator_type, status.priority) == (maker, kind, priority)
    assert (status.num_slices, status.hosts_per_slice, status.num_hosts) == shape
    assert (status.phase, status.num_hosts_up) == (Phase.RUNNING, status.num_hosts)
    assert status.command[-1] == command and status.queue == "multislice-queue"


def test_workloads_of_all_tools_are_listed_together() -> None:
    assert {status.name: str(status.phase) for status in find_all(cluster(*NAMES))} == dict.fromkeys(
        NAMES.values(), "Running"
    )


def test_the_exit_code_of_any_parallel_container_is_shown() -> None:
    api = cluster("gcluster-parallel")
    pod = api.get("Pod", "parallel-main-job-0-1-abcde")
    first, second = pod["status"]["containerStatuses"]
    second["state"] = {"terminated": {"exitCode": 3, "finishedAt": NOW}}
    api.patch("Pod", pod["metadata"]["name"], {"status": {"phase": "Failed", "containerStatuses": [first, second]}})
    failed = {"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "x", "lastTransitionTime": NOW}
    api.patch("JobSet", "parallel", {"status": {"conditions": [failed]}})
    assert "host s0/h1 ended with exit code 3" in find(api, "parallel").reason


@pytest.mark.parametrize("file", NAMES)
def test_logs_of_every_host_are_read(file: str) -> None:
    api = cluster(file)
    lines = [line.text for line in read_logs(api, NAMES[file], "default", LogQuery())]
    pods = {pod["metadata"]["name"]: [one["name"] for one in pod["spec"]["containers"]] for pod in api.list("Pod")}
    assert sorted(lines) == sorted(f"{pod} {name}" for pod, names in pods.items() for name in names)


def test_logs_are_those_of_the_program_where_gke_adds_a_container() -> None:
    api = cluster("gcluster", sidecar=True)
    lines = {line.text.split()[-1] for line in read_logs(api, "llama-train", "default", LogQuery())}
    assert lines == {"workload-container"}


def test_logs_of_parallel_containers_are_followed() -> None:
    api = cluster("gcluster-parallel")
    api.patch("JobSet", "parallel", {"status": {"conditions": [ended()]}})
    lines = follow_logs(api, "parallel", "default", LogQuery(slice=0, host=1))
    assert {line.text for line in lines} == {
        f"parallel-main-job-0-1-abcde workload-container-{number}" for number in (1, 2)
    }


@pytest.mark.parametrize(("file", "label"), [("gcluster", "gcluster"), ("google-xpk", "xpk")])
def test_the_end_of_a_workload_is_noticed_at_once(file: str, label: str) -> None:
    api = cluster(file)
    assert lifecycle.wait(api, NAMES[file], "default", timeout=5).phase is Phase.SUCCEEDED
    assert api.watched == {f"{label}.google.com/workload": NAMES[file]}


def test_the_end_of_a_jobset_without_a_known_label_is_noticed_at_once() -> None:
    api = cluster("gcluster")
    api.patch("JobSet", "llama-train", {"metadata": {"labels": {"gcluster.google.com/workload": None}}})
    assert lifecycle.wait(api, "llama-train", "default", timeout=5).phase is Phase.SUCCEEDED
    assert api.watched is None


def test_named_workloads_of_both_tools_are_deleted_without_force() -> None:
    api = cluster(*NAMES)
    planned = plan_named(api, list(NAMES.values()), "default", cluster="dev")
    carry_out(api, planned, "default", timeout=None)
    assert api.list("JobSet") == []


def test_filters_and_all_delete_only_workloads_of_xpk() -> None:
    assert [planned.name for planned in plan_all(cluster(*NAMES), "default")] == ["theirs"]


def test_a_workload_that_a_controller_may_depend_on_needs_force() -> None:
    api = cluster("gcluster")
    labels = {"gcluster.google.com/workload": None, "app.kubernetes.io/managed-by": "argo"}
    api.patch("JobSet", "llama-train", {"metadata": {"labels": labels}})
    with pytest.raises(ConflictError, match="created by argo, not xpk"):
        plan_named(api, ["llama-train"], "default", cluster="dev")


@pytest.fixture
def prod(state: Path) -> Iterator[Cluster]:
    """Yield the API server of an adapted cluster `prod` with workloads of both tools."""
    api = cluster(*NAMES)
    with serving(api) as url:
        folder = state / "adapted" / "prod"
        folder.mkdir(parents=True)
        config = {
            "current-context": "prod",
            "contexts": [{"name": "prod", "context": {"cluster": "prod"}}],
            "clusters": [{"name": "prod", "cluster": {"server": url}}],
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config), encoding="utf-8")
        yield api


def test_commands_show_explain_and_delete_workloads_of_gcluster(prod: Cluster, xpk: Xpk) -> None:
    listed = xpk("workload", "list", "--cluster", "prod", "-o", "json").data
    assert {item["name"]: item["maker"] for item in listed}["llama-train"] == "gcluster"
    shown = xpk("workload", "status", "llama-train", "--cluster", "prod")
    assert shown.code == 0 and "created by gcluster, not xpk" in " ".join(shown.out.split())
    assert "all 8 hosts running" in shown.out and "v6e-16" in shown.out and "high" in shown.out
    described = xpk("workload", "describe", "llama-train", "--cluster", "prod")
    assert described.code == 0 and "s1/h3" in described.out and "/data" in described.out
    deleted = xpk("workload", "delete", "llama-train", "--cluster", "prod")
    assert deleted.code == 0, deleted.err
    assert "llama-train" not in {obj["metadata"]["name"] for obj in prod.list("JobSet")}


def test_a_command_line_of_gcluster_is_translated_and_run(prod: Cluster, xpk: Xpk) -> None:
    done = xpk("gcluster", "job", "list", "--cluster", "prod", "--status", "Running")
    assert done.code == 0 and "llama-train" in done.out
    assert done.err.splitlines()[0] == "xpk workload list --cluster prod --filter-by-status running"
    assert xpk("gcluster", "job", "cancel", "llama-train", "-c", "prod").code == 0
    assert "llama-train" not in xpk("workload", "list", "--cluster", "prod").out
