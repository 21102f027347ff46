"""The kind provider on real Docker, kind, JobSet and Kueue; in order, on one cluster.

eval "$(e2e/environment/up)" && .venv/bin/python -m pytest e2e/test_kind.py --timeout 900
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CLUSTER = f"e2e-{os.getpid()}"  # several runs on one machine do not meet
XPK = [sys.executable, "-m", "xpk"]
CREATE = ("cluster", "create", CLUSTER, "--provider", "kind", "--tpu-type", "v5litepod-8", "--num-slices", "2")
SHOW_ENVIRONMENT = (
    'mkdir -p "$XPK_OUTPUT_DIR" && echo "$HOSTNAME" > "$XPK_OUTPUT_DIR/s$MEGASCALE_SLICE_ID-h$TPU_WORKER_ID" && '
    'until getent hosts "${XPK_COORDINATOR_ADDRESS%:*}" > /dev/null; do sleep 0.2; done && '
    "python -c 'import json, os; print(json.dumps(dict(os.environ)))'"
)


def why_not() -> str:
    """Return what is missing here, "" if nothing is."""
    missing = [program for program in ("docker", "kind", "kubectl") if not shutil.which(program)]
    if missing:
        return f"no {', '.join(missing)} on PATH"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return "Docker does not answer"
    return "" if os.environ.get("XPK_E2E_JOBSET_MANIFEST") else "XPK_E2E_JOBSET_MANIFEST is not set"


pytestmark = pytest.mark.skipif(bool(why_not()), reason=f'{why_not()}: `eval "$(e2e/environment/up)"` first')


@dataclass(frozen=True, slots=True)
class Place:
    """A state folder of its own, and a kubeconfig that stands for the user's."""

    folder: Path

    @property
    def state(self) -> Path:
        """What the cluster's files are kept in."""
        return self.folder / "state" / "kind" / CLUSTER

    @property
    def kubeconfig(self) -> Path:
        """The user's, which nobody may touch."""
        return self.folder / "home" / ".kube" / "config"

    def xpk(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command and check its exit code."""
        ours = {
            "HOME": str(self.folder / "home"),
            "XPK_STATE_DIR": str(self.folder / "state"),
            "XPK_CONFIG_DIR": str(self.folder / "config"),
        }
        done = subprocess.run(
            [*XPK, *arguments], env={**os.environ, **ours}, capture_output=True, text=True, check=False, timeout=800
        )
        assert done.returncode == code, f"{done.args}\n{done.stdout}\n{done.stderr}\n{self.what_is_there()}"
        return done

    def kubectl(self, *arguments: str) -> str:
        """Ask the cluster itself."""
        argv = ["kubectl", f"--kubeconfig={self.state / 'kubeconfig'}", *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout

    def what_is_there(self) -> str:
        """Return what one wants to see when a test fails."""
        if not (self.state / "kubeconfig").exists():
            return ""
        return self.kubectl("get", "nodes,pods,jobsets,workloads", "-A") + self.kubectl("get", "events")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place where no cluster is yet, and none is afterwards, whatever fails."""
    made = Place(tmp_path_factory.mktemp("kind"))
    made.kubeconfig.parent.mkdir(parents=True)
    made.kubeconfig.write_text("current-context: precious\n")
    yield made
    made.xpk("cluster", "delete", CLUSTER, "--provider", "kind", "--force", "--ignore-not-found")


def containers() -> list[str]:
    """Return the containers of the cluster."""
    label = f"label=io.x-k8s.kind.cluster={CLUSTER}"
    argv = ["docker", "ps", "--all", "--quiet", "--filter", label]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def test_a_dry_run_shows_the_plan_and_changes_nothing(place: Place) -> None:
    plan = json.loads(place.xpk(*CREATE, "--dry-run", "-o", "json").stdout)
    assert plan["steps"][0].startswith(f"create kind cluster '{CLUSTER}'")
    assert plan["steps"][-1].startswith("set up queue")
    assert containers() == []
    assert not place.state.exists()


def test_create_and_create_again(place: Place) -> None:
    place.xpk(*CREATE)
    assert len(containers()) == 3
    assert "nothing to do" in place.xpk(*CREATE).stderr
    assert place.kubeconfig.read_text() == "current-context: precious\n"
    assert list(place.kubeconfig.parent.iterdir()) == [place.kubeconfig]


def test_an_interrupted_installation_is_taken_up_and_queues_stay(place: Place) -> None:
    uid = ("get", "clusterqueue", "cluster-queue", "-o", "jsonpath={.metadata.uid}")
    before = place.kubectl(*uid)
    place.kubectl("delete", "deployment", "-n", "kueue-system", "kueue-controller-manager")
    plan = json.loads(place.xpk(*CREATE, "--dry-run", "-o", "json").stdout)
    assert plan["steps"] == ["install Kueue 0.19.2"]
    place.xpk(*CREATE)
    assert before and place.kubectl(*uid) == before


def test_nodes_are_what_gke_would_make_them(place: Place) -> None:
    (info,) = json.loads(place.xpk("cluster", "list", "--provider", "kind", "-o", "json").stdout)
    assert (info["state"], info["accelerator_type"], info["num_slices"]) == ("Ready", "v5litepod-8", 2)
    nodes = json.loads(place.kubectl("get", "nodes", "-l", "cloud.google.com/gke-nodepool", "-o", "json"))["items"]
    labels = [node["metadata"]["labels"] for node in nodes]
    assert {each["cloud.google.com/gke-nodepool"] for each in labels} == {f"{CLUSTER}-np-0", f"{CLUSTER}-np-1"}
    assert {each["cloud.google.com/gke-tpu-topology"] for each in labels} == {"2x4"}
    assert [node["status"]["allocatable"]["google.com/tpu"] for node in nodes] == ["8", "8"]
    for namespace in ("jobset-system", "kueue-system"):
        pods = json.loads(place.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"]
        assert [pod["spec"]["nodeName"] for pod in pods] == [f"{CLUSTER}-control-plane"]


def test_a_command_runs_on_every_host_with_the_environment_contract(place: Place) -> None:
    at = ("--cluster", CLUSTER)
    place.xpk("workload", "create", "hello", *at, "--num-slices", "2", "--command", SHOW_ENVIRONMENT)
    place.xpk("workload", "wait", "hello", *at, "--timeout", "3m")
    info = json.loads(place.xpk("workload", "describe", "hello", *at, "-o", "json").stdout)
    assert info["phase"] == "Succeeded"
    nodes: dict[int, set[str]] = {}
    for host in info["hosts"]:
        nodes.setdefault(host["slice"], set()).add(host["node"])
    assert sorted(len(each) for each in nodes.values()) == [1, 1], "a slice is never split"
    assert not nodes[0] & nodes[1], "a slice has its node pool to itself"
    for each in range(4):
        check_environment(place, each // 2, each % 2)
    written = sorted(file.name for file in (place.state / "output" / "hello").iterdir())
    assert written == ["s0-h0", "s0-h1", "s1-h0", "s1-h1"], "hosts and this machine share the output folder"


def check_environment(place: Place, slice_id: int, host: int) -> None:
    """Compare what a host has seen with docs/environment.md."""
    which = ("--slice", str(slice_id), "--host", str(host))
    logged = place.xpk("workload", "logs", "hello", "--cluster", CLUSTER, *which).stdout
    env: dict[str, str] = json.loads(logged[logged.index("{") :])
    wanted: dict[str, Any] = {
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": str(slice_id),
        "MEGASCALE_COORDINATOR_ADDRESS": "hello-slice-job-0-0.hello:8080",
        "TPU_WORKER_ID": str(host),
        "TPU_WORKER_HOSTNAMES": ",".join(f"hello-slice-job-{slice_id}-{index}.hello" for index in range(2)),
        "XPK_COORDINATOR_ADDRESS": "hello-slice-job-0-0.hello:8476",
        "XPK_HOSTS_PER_SLICE": "2",
        "XPK_RESTART_ATTEMPT": "0",
        "XPK_WORKLOAD": "hello",
        "XPK_OUTPUT_DIR": str(place.state / "output" / "hello"),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
    }
    assert {key: env.get(key) for key in wanted} == wanted


def test_a_job_that_can_never_fit_is_told_so(place: Place) -> None:
    failed = place.xpk(
        "workload", "create", "big", "--cluster", CLUSTER, "--num-slices", "3", "--command", "true", code=5
    )
    assert "use --num-slices 2" in failed.stderr


def test_a_failing_command_is_a_failed_workload(place: Place) -> None:
    at = ("--cluster", CLUSTER)
    place.xpk("workload", "create", "bad", *at, "--command", "echo about to fail; exit 42")
    place.xpk("workload", "wait", "bad", *at, "--timeout", "3m", code=8)
    place.xpk("workload", "delete", "bad", *at, "--yes")


def test_the_bundled_trainer_trains(place: Place) -> None:
    at = ("--cluster", CLUSTER)
    options = ("--config", "tiny", "--set", "run.steps=12", "--set", "data.max_bytes=400000")
    place.xpk("workload", "create", "lm", *at, "--num-slices", "2", "--", *options)
    place.xpk("workload", "wait", "lm", *at, "--timeout", "10m")
    output = place.state / "output" / "lm"
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 12
    assert losses[-1] < losses[0]
    assert json.loads((output / "result.json").read_text())["steps"] == 12
    report = place.folder / "lm.html"
    place.xpk("workload", "report", "lm", *at, "--file", str(report))
    assert "<svg" in report.read_text()


def test_delete_leaves_nothing(place: Place) -> None:
    place.xpk("cluster", "delete", CLUSTER, "--yes")
    assert containers() == []
    argv = ["docker", "network", "ls", "--format", "{{.Name}}"]
    assert f"xpk-{CLUSTER}" not in subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert not place.state.exists()
    assert place.kubeconfig.read_text() == "current-context: precious\n"
