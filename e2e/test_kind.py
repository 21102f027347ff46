"""The kind provider on real Docker, kind, JobSet and Kueue: the cluster, and what commands on it find.

eval "$(e2e/environment/up)" && .venv/bin/python -m pytest e2e/test_kind.py --timeout 900

That deleting the cluster leaves nothing is checked at the session's end, when all files are done with it.
"""

from __future__ import annotations

import json
from typing import Any

from e2e.drill import STEPS
from e2e.harness import Workload
from e2e.kind_cluster import SLICES, SPARE_SLICES, Place
from tests.waiting import until

# No host ends before all have found the coordinator, whose name disappears with it.
SHOW_ENVIRONMENT = (
    'until getent hosts "${XPK_COORDINATOR_ADDRESS%:*}" > /dev/null; do sleep 0.2; done && '
    'mkdir -p "$XPK_OUTPUT_DIR" && echo "$HOSTNAME" > "$XPK_OUTPUT_DIR/s$MEGASCALE_SLICE_ID-h$TPU_WORKER_ID" && '
    'until [ "$(ls "$XPK_OUTPUT_DIR" | wc -l)" = 4 ]; do sleep 0.2; done && '
    "python -c 'import json, os; print(json.dumps(dict(os.environ)))'"
)
# The image's user owns this folder, so only the read-only filesystem refuses the file.
CHECK_ROOT = (
    "touch /tmp/file && { touch /home/host/file 2>&1 || true; } | grep -q 'Read-only file system' && "
    "test ! -e /home/host/file || exit 42"
)


def test_a_dry_run_shows_the_plan_and_changes_nothing(empty_place: Place) -> None:
    before = empty_place.containers()
    other = tuple(f"{word}-not" if word == empty_place.cluster else word for word in empty_place.create)
    plan = json.loads(empty_place.xpk(*other, "--dry-run", "-o", "json").stdout)
    assert plan["steps"][0].startswith(f"create kind cluster '{empty_place.cluster}-not'")
    assert plan["steps"][-2].startswith("set up queue")
    assert plan["steps"][-1] == "wait until all hosts are ready and offer their chips"
    assert empty_place.containers() == before
    assert not empty_place.state.with_name(f"{empty_place.cluster}-not").exists()


def test_create_is_idempotent(place: Place) -> None:
    assert len(place.containers()) == 1 + SLICES + SPARE_SLICES
    assert "nothing to do" in place.xpk(*place.create).stderr
    assert place.kubeconfig.read_text() == "current-context: precious\n"
    assert list(place.kubeconfig.parent.iterdir()) == [place.kubeconfig]


def test_an_interrupted_installation_is_completed_and_queues_are_kept(place: Place) -> None:
    uid = ("get", "clusterqueue", "cluster-queue", "-o", "jsonpath={.metadata.uid}")
    before = place.kubectl(*uid)
    place.kubectl("delete", "deployment", "-n", "kueue-system", "kueue-controller-manager")
    plan = json.loads(place.xpk(*place.create, "--dry-run", "-o", "json").stdout)
    assert plan["steps"] == ["install Kueue 0.19.2"]
    place.xpk(*place.create)
    assert before and place.kubectl(*uid) == before


def test_nodes_have_the_labels_and_taints_of_gke(place: Place) -> None:
    clusters = json.loads(place.xpk("cluster", "list", "--provider", "kind", "-o", "json").stdout)
    (info,) = (cluster for cluster in clusters if cluster["name"] == place.cluster)
    assert (info["state"], info["accelerator_type"], info["num_slices"]) == ("Ready", "v5litepod-8", SLICES)
    nodes = json.loads(place.kubectl("get", "nodes", "-l", "cloud.google.com/gke-nodepool", "-o", "json"))["items"]
    labels = [node["metadata"]["labels"] for node in nodes]
    pools = {f"{place.cluster}-np-{index}" for index in range(SLICES + SPARE_SLICES)}
    assert {item["cloud.google.com/gke-nodepool"] for item in labels} == pools
    assert {item["cloud.google.com/gke-tpu-topology"] for item in labels} == {"2x4"}
    assert {node["status"]["allocatable"]["google.com/tpu"] for node in nodes} == {"8"}
    for namespace in ("jobset-system", "kueue-system"):
        pods = json.loads(place.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"]
        assert [pod["spec"]["nodeName"] for pod in pods] == [f"{place.cluster}-control-plane"]


def test_quotas_exclude_the_spare_slice(place: Place) -> None:
    path = "jsonpath={.spec.resourceGroups[*].flavors[*].resources[*].nominalQuota}"
    assert place.kubectl("get", "clusterqueue", "cluster-queue", "-o", path) == str(SLICES * 8)


def test_a_command_runs_on_every_host_with_the_environment_contract(place: Place) -> None:
    at = ("--cluster", place.cluster)
    place.xpk("workload", "create", "hello", *at, "--num-slices", "2", "--command", SHOW_ENVIRONMENT)
    place.xpk("workload", "wait", "hello", *at, "--timeout", "3m")
    info = json.loads(place.xpk("workload", "describe", "hello", *at, "-o", "json").stdout)
    assert info["phase"] == "Succeeded"
    nodes: dict[int, set[str]] = {}
    for host in info["hosts"]:
        nodes.setdefault(host["slice"], set()).add(host["node"])
    assert sorted(len(item) for item in nodes.values()) == [1, 1], "slices are not split"
    assert not nodes[0] & nodes[1], "each slice has its own node pool"
    for item in range(4):
        check_environment(place, item // 2, item % 2)
    written = sorted(file.name for file in (place.state / "output" / "hello").iterdir())
    assert written == ["s0-h0", "s0-h1", "s1-h0", "s1-h1"], "hosts and this machine share the output folder"
    place.xpk("workload", "delete", "hello", *at, "--yes", "--with-output")


def check_environment(place: Place, slice_id: int, host: int) -> None:
    """Compare a host's environment with docs/environment.md."""
    which = ("--slice", str(slice_id), "--host", str(host))
    logged = place.xpk("workload", "logs", "hello", "--cluster", place.cluster, *which).stdout
    env: dict[str, str] = json.loads(logged[logged.index("{") :])
    variables: dict[str, Any] = {
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
    assert {key: env.get(key) for key in variables} == variables


def test_a_protected_workload_has_a_read_only_root_and_a_policy_for_its_own_hosts(place: Place) -> None:
    """The network of the drills enforces no policies, so only the policy itself is checked."""
    at, protection = ("--cluster", place.cluster), ("--network-policy", "--read-only-root")
    place.xpk("workload", "create", "guarded", *at, *protection, "--command", f"{CHECK_ROOT}; sleep 600")
    place.xpk("workload", "create", "stranger", *at, "--command", "sleep 600")

    def pods(*arguments: str) -> list[str]:
        return sorted(place.kubectl("get", "pods", *arguments, "-o", "name").split())

    def run(workload: str) -> bool:
        info = json.loads(place.xpk("workload", "describe", workload, *at, "-o", "json").stdout)
        return [host["phase"] for host in info["hosts"]] == ["Running", "Running"]

    until(lambda: run("guarded") and run("stranger"), seconds=180)
    policy = json.loads(place.kubectl("get", "networkpolicy", "xpk-hosts.guarded", "-o", "json"))
    ((label, value),) = policy["spec"]["podSelector"]["matchLabels"].items()
    assert pods("-l", f"{label}={value}") == pods("-l", "xpk.google.com/workload=guarded") != []
    place.xpk("workload", "delete", "guarded", "stranger", *at, "--yes", "--grace-period", "1")
    until(lambda: not place.kubectl("get", "networkpolicies", "-o", "name"), seconds=60)


def test_a_job_that_can_never_fit_is_rejected(place: Place) -> None:
    size = ("--num-slices", str(SLICES + SPARE_SLICES))
    failed = place.xpk("workload", "create", "big", "--cluster", place.cluster, *size, "--command", "true", code=5)
    assert f"use --num-slices {SLICES}" in failed.stderr


def test_a_failing_command_fails_the_workload(place: Place) -> None:
    at = ("--cluster", place.cluster)
    place.xpk("workload", "create", "bad", *at, "--command", "echo about to fail; exit 42")
    place.xpk("workload", "wait", "bad", *at, "--timeout", "3m", code=8)
    place.xpk("workload", "delete", "bad", *at, "--yes")


def test_the_bundled_trainer_trains_and_its_output_can_be_read(place: Place, calm: Workload) -> None:
    at = ("--cluster", place.cluster)
    losses = [float.fromhex(loss) for _, loss in sorted(calm.losses.items())]
    assert losses[-1] < losses[0]
    assert [line["step"] for line in calm.evals] == [STEPS // 2, STEPS]
    assert {int(file.name) for file in (calm.folder / "checkpoints").iterdir() if file.name.isdigit()} >= {STEPS}
    result = json.loads((calm.folder / "result.json").read_text())
    assert (result["steps"], result["final_loss"]) == (STEPS, losses[-1])
    described = calm.describe()
    assert (described["phase"], described["restarts"], len(described["hosts"])) == ("Succeeded", 0, 4)
    assert {host["exit_code"] for host in described["hosts"]} == {0}
    logged = place.xpk("workload", "logs", calm.name, *at).stdout
    assert f"done: {STEPS} steps" in logged
    logged = place.xpk("workload", "logs", calm.name, *at, "--all-lines").stdout
    assert {line.split(" ")[0] for line in logged.splitlines()} >= {"s0/h0", "s1/h1"}
    page = place.folder / "calm.html"
    figures = json.loads(place.xpk("workload", "report", calm.name, *at, "--file", str(page), "-o", "json").stdout)
    assert (figures["steps"], figures["restarts"], figures["lost_steps"]) == (STEPS, 0, 0)
    assert figures["eval_loss"] == result["eval_loss"] and 0 < figures["goodput"] < 1
    assert "<svg" in page.read_text()
