"""Plans of the kind provider, on a test machine. The drill is e2e/test_kind.py."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.capacity.machine import Machine, spec
from xpk.capacity.nodes.cordon import cordon
from xpk.capacity.plan.plan import Plan
from xpk.capacity.provider import count_existing_slices
from xpk.capacity.queues.planning import plan_create
from xpk.capacity.queues.reading import quotas_of
from xpk.capacity.queues.request import QueueRequest
from xpk.model import names
from xpk.model.errors import ConflictError, MissingToolError, NotFoundError, UsageError, XpkError
from xpk.proc import Result


def carry_out(plan: Plan) -> list[str]:
    done: list[str] = []
    plan.carry_out(done.append)
    return done


def test_a_second_create_has_nothing_to_do(machine: Machine) -> None:
    provider = machine.provider()
    plan = provider.plan_create(spec())
    assert [step.title for step in plan.steps] == [
        "create kind cluster 'dev': a control plane and 2 nodes",
        "advertise 8 google.com/tpu on every slice's node",
        "install JobSet 0.12.0",
        "install Kueue 0.19.2",
        "load trainer image xpk-trainer:given into the nodes",
        "set up queue 'multislice-queue' with a quota of 16 google.com/tpu",
        "wait until all hosts are ready and offer their chips",
    ]
    assert not provider.names(), "a plan changes nothing"
    carry_out(plan)
    assert provider.plan_create(spec()).steps == []
    assert count_existing_slices(provider, "dev", spec().shape) == 2
    info = provider.describe("dev")
    assert (info.state, info.num_slices, info.hosts_per_slice, info.chips) == ("Ready", 2, 2, 16)
    assert [(item.node_pool, len(item.hosts)) for item in info.slices] == [("dev-np-0", 2), ("dev-np-1", 2)]
    read = len(machine.api("dev").calls)
    assert replace(provider.describe("dev", brief=True), slices=()) == replace(info, slices=())
    assert ("list", "Pod", "") not in machine.api("dev").calls[read:], "a list of clusters reads no pods"
    target = provider.target("dev")
    assert target.trainer_image == "xpk-trainer:given"
    assert target.fenced
    assert stat.S_IMODE(Path(str(target.shared_folder)).stat().st_mode) == 0o1777, "sticky: pods have different users"


@pytest.mark.parametrize("works", [True, False])
def test_hosts_that_train_do_not_slow_down_the_control_plane(machine: Machine, works: bool) -> None:
    update = ("docker", "update", "--cpu-shares", "8192", "dev-control-plane")
    machine.fails |= set() if works else {"docker update"}
    carry_out(machine.provider().plan_create(spec()))
    assert update in machine.runner.calls, "the share of other nodes is 1024"
    assert machine.provider().describe("dev").state == "Ready"


def test_quotas_of_teams_are_kept_by_a_second_create(machine: Machine) -> None:
    provider = machine.provider()
    carry_out(provider.plan_create(spec()))
    api = machine.api("dev")
    expected = QueueRequest(name="red", namespaces=("red",), quota=("1",), create_namespace=True)
    assert len(carry_out(plan_create(api, expected))) == 3
    assert provider.plan_create(spec()).steps == [] and provider.describe("dev").state == "Ready"
    api.patch("ClusterQueue", "cluster-queue", {"spec": {"resourceGroups": []}})
    (again,) = carry_out(provider.plan_create(spec()))
    assert "set up queue 'multislice-queue'" in again
    assert quotas_of(api.get("ClusterQueue", "cluster-queue")) == {"v5litepod-8": 1}
    assert quotas_of(api.get("ClusterQueue", "red")) == {"v5litepod-8": 1}


def test_an_existing_cluster_is_updated(machine: Machine) -> None:
    provider = machine.provider()
    with pytest.raises(NotFoundError, match="cluster 'dev' not found"):
        provider.plan_adapt("dev")
    carry_out(provider.plan_create(spec()))
    assert provider.plan_adapt("dev").steps == []
    old = {"name": "manager", "image": "registry.k8s.io/kueue/kueue:v0.18.0"}
    patch = {"spec": {"template": {"spec": {"containers": [old]}}}}
    machine.api("dev").patch("Deployment", "kueue-controller-manager", patch, "kueue-system")
    assert carry_out(provider.plan_adapt("dev")) == ["upgrade Kueue 0.18.0 to 0.19.2"]
    machine.clusters.clear()
    with pytest.raises(ConflictError, match="is incomplete") as caught:
        provider.plan_adapt("dev")
    assert "xpk cluster create dev --provider kind" in caught.value.hint


def test_priority_classes_of_other_tools_are_created(machine: Machine) -> None:
    carry_out(machine.provider().plan_create(spec()))
    classes = machine.provider().connect("dev").list("PriorityClass")
    assert {entry["metadata"]["name"]: entry["value"] for entry in classes} == names.PRIORITIES


def test_the_users_own_files_are_not_changed(machine: Machine) -> None:
    carry_out(machine.provider().plan_create(spec()))
    for call in machine.runner.ran("kind create") + machine.runner.ran("kind delete"):
        kubeconfig = call[call.index("--kubeconfig") + 1]
        assert kubeconfig.startswith(str(machine.state / "kind" / "dev"))
    assert machine.networks == {"xpk-dev"}, "it has its own network"


@pytest.mark.parametrize("steps", range(8))
def test_an_interrupted_create_resumes(machine: Machine, steps: int) -> None:
    provider = machine.provider()
    plan = provider.plan_create(spec())
    for step in plan.steps[:steps]:
        step.act()
    rest = provider.plan_create(spec())
    left = [step.title for step in plan.steps[steps:]]
    # Ready hosts are not awaited.
    assert [step.title for step in rest.steps] == (left if steps < 2 else left[:-1])
    carry_out(rest)
    assert provider.describe("dev").state == "Ready"


def test_an_incomplete_cluster_is_removed_first(machine: Machine) -> None:
    provider = machine.provider()
    carry_out(provider.plan_create(spec()))
    (machine.state / "kind" / "dev" / "kubeconfig").unlink()
    titles = carry_out(provider.plan_create(spec()))
    assert titles[0] == "remove the remains of an interrupted create of 'dev'"
    assert provider.describe("dev").state == "Ready"


@pytest.mark.parametrize("retain", [False, True])
def test_a_failed_create_leaves_nothing_unless_retained(machine: Machine, retain: bool) -> None:
    machine.fails.add("kind create cluster")
    provider = machine.provider(retain=retain)
    with pytest.raises(XpkError, match=r"failed to create cluster: port taken$"):
        carry_out(provider.plan_create(spec()))
    assert bool(machine.clusters) == bool(provider.names()) == retain
    machine.fails.clear()
    carry_out(provider.plan_create(spec()))
    assert provider.describe("dev").state == "Ready"


def test_remains_of_a_failed_create_are_reused_by_the_next(machine: Machine) -> None:
    machine.fails |= {"kind create cluster", "kind delete cluster"}
    with pytest.raises(XpkError, match="port taken"):
        carry_out(machine.provider().plan_create(spec()))
    assert machine.clusters and machine.provider().names() == ["dev"]
    machine.fails.clear()
    titles = carry_out(machine.provider().plan_create(spec()))
    assert titles[0] == "remove the remains of an interrupted create of 'dev'"


def test_nodes_that_another_command_creates_are_no_remains(machine: Machine) -> None:
    """The second command plans while the first one creates nodes, and runs once it has finished."""
    first, second = machine.provider().plan_create(spec()), machine.provider()
    create, plans = machine.runner.script["kind create cluster"], list[Plan]()

    def slow(argv: tuple[str, ...]) -> object:
        created = create(argv)  # type: ignore[operator]
        (machine.state / "kind" / "dev" / "kubeconfig").unlink(missing_ok=True)
        plans.append(second.plan_create(spec()))
        return created

    machine.runner.script["kind create cluster"] = slow  # type: ignore[assignment]
    carry_out(first)
    assert plans[0].steps[0].title.startswith("remove the remains")
    with pytest.raises(ConflictError, match="cluster 'dev' was modified concurrently"):
        carry_out(plans[0])
    assert machine.provider().describe("dev").state == "Ready"


def test_a_cluster_that_another_tool_creates_meanwhile_is_kept_by_the_next_create_too(machine: Machine) -> None:
    plan = machine.provider().plan_create(spec())
    said = 'ERROR: failed to create cluster: node(s) already exist for a cluster with the name "dev"'
    machine.runner.script["kind create cluster"] = Result((), 1, "", said)
    with pytest.raises(ConflictError, match="already exist"):
        carry_out(plan)
    assert machine.provider().names() == [], "otherwise the next create would remove it as its own remains"


def test_another_shape_is_a_conflict(machine: Machine) -> None:
    provider = machine.provider()
    carry_out(provider.plan_create(spec()))
    with pytest.raises(ConflictError, match="2 slices \\(requested 3\\)"):
        provider.plan_create(spec(num_slices=3))
    with pytest.raises(ConflictError, match="type v5litepod-8 \\(requested v5litepod-16\\)"):
        provider.plan_create(spec("v5litepod-16"))


def test_a_kind_cluster_of_another_tool_is_not_changed(machine: Machine) -> None:
    other = machine.provider()
    carry_out(other.plan_create(spec()))
    machine.state = machine.folder / "another user"
    with pytest.raises(ConflictError, match="not created by xpk"):
        machine.provider().plan_create(spec())
    assert machine.provider().names() == []


def test_nodes_per_slice_and_spares(machine: Machine) -> None:
    provider = machine.provider(nodes_per_slice=2, spare_slices=1)
    plan = provider.plan_create(spec())
    assert "a control plane and 6 nodes" in plan.steps[0].title
    assert "advertise 4 google.com/tpu" in plan.steps[1].title
    carry_out(plan)
    assert provider.plan_create(spec()).steps == []
    assert machine.provider().plan_create(spec()).steps == [], "the original options count"
    info = provider.describe("dev")
    assert info.num_slices == 2, "spare slices are not counted"
    assert info.slices[0].hosts == ("dev-worker1", "dev-worker2")
    nodes = machine.api("dev").list("Node")
    assert sum(names.SPARE_LABEL in node["metadata"]["labels"] for node in nodes) == 2


def test_other_nodes_than_an_existing_cluster_has_are_refused_not_ignored(machine: Machine) -> None:
    carry_out(machine.provider(spare_slices=1).plan_create(spec()))
    with pytest.raises(ConflictError, match=r"1 node per slice \(requested 2\), 1 spare slice \(requested 2\)"):
        machine.provider(nodes_per_slice=2, spare_slices=2).plan_create(spec())
    assert machine.provider(spare_slices=1).plan_create(spec()).steps == []


def test_all_problems_are_reported_together(machine: Machine) -> None:
    with pytest.raises(UsageError) as caught:
        machine.provider(nodes_per_slice=3).plan_create(spec("n2-standard-32-4", 0, name="Bad_Name"))
    assert len(caught.value.problems) == 4
    with pytest.raises(UsageError) as caught:
        machine.provider(spare_slices=-1).plan_create(spec())
    assert caught.value.problems == ("--spare-slices must be at least 0, got -1",)


@pytest.mark.parametrize("program", ["docker", "kind"])
def test_a_missing_program_is_named(machine: Machine, program: str) -> None:
    machine.runner.missing.add(program)
    with pytest.raises(MissingToolError, match=f"needs `{program}`"):
        machine.provider().plan_create(spec())
    assert machine.provider().names() == [], "other commands continue without it"


def test_a_stopped_docker_and_an_old_kind_are_reported(machine: Machine) -> None:
    machine.fails.add("docker version")
    with pytest.raises(MissingToolError, match="Docker does not answer"):
        machine.provider().plan_create(spec())
    machine.fails.clear()
    machine.runner.script["kind version"] = "kind v0.11.1 go1.16 linux/amd64"
    with pytest.raises(MissingToolError, match=r"kind v0\.11 is too old"):
        machine.provider().plan_create(spec())


def test_delete_leaves_nothing(machine: Machine) -> None:
    provider = machine.provider()
    carry_out(provider.plan_create(spec()))
    jobset = {"kind": "JobSet", "metadata": {"name": "lm", "namespace": "default"}}
    machine.api("dev").create(jobset)
    with pytest.raises(ConflictError, match="workloads are on cluster 'dev': lm"):
        provider.plan_delete("dev", force=False)
    carry_out(provider.plan_delete("dev", force=True))
    assert (machine.clusters, machine.networks, provider.names()) == ({}, set(), [])
    assert not (machine.state / "kind" / "dev").exists()
    with pytest.raises(NotFoundError):
        provider.plan_delete("dev", force=True)


def test_a_workload_that_came_after_the_plan_keeps_its_cluster(machine: Machine) -> None:
    provider = machine.provider()
    carry_out(provider.plan_create(spec()))
    plan, api = provider.plan_delete("dev", force=False), machine.api("dev")
    api.create({"kind": "JobSet", "metadata": {"name": "late", "namespace": "default"}})
    with pytest.raises(ConflictError, match="workloads are on cluster 'dev': late"):
        carry_out(plan)
    assert provider.names() == ["dev"]
    assert not any(node["spec"].get("unschedulable") for node in api.list("Node"))
    cordon(api, api.list("Node"))  # as left by a killed delete
    (title,) = carry_out(provider.plan_resize("dev", 2, force=False))
    assert title == "uncordon dev-np-0, dev-np-1: an interrupted command has cordoned it"
    assert provider.plan_resize("dev", 2, force=False).steps == []


def test_resize_suggests_an_alternative(machine: Machine) -> None:
    provider = machine.provider()
    carry_out(provider.plan_create(spec()))
    assert provider.plan_resize("dev", 2, force=False).steps == []
    with pytest.raises(UsageError) as caught:
        provider.plan_resize("dev", 3, force=False)
    assert "--num-slices 3" in caught.value.hint


def test_a_changed_trainer_is_loaded_again(machine: Machine) -> None:
    carry_out(machine.provider().plan_create(spec()))
    machine.images.add("xpk-trainer:newer")
    provider = machine.provider(trainer_image="xpk-trainer:newer")
    assert carry_out(provider.plan_create(spec())) == ["load trainer image xpk-trainer:newer into the nodes"]
    (load,) = [call for call in machine.runner.ran("kind load") if "xpk-trainer:newer" in call]
    assert load[-1] == "dev-worker1,dev-worker2"
    assert provider.target("dev").trainer_image == "xpk-trainer:newer"


def test_a_failed_image_build_is_explained(machine: Machine, tmp_path: Path) -> None:
    machine.runner.script["docker build"] = Result((), 1, "Step 1/9", "The command 'pip install' returned 1")
    with pytest.raises(XpkError, match=r"cannot build image xpk-trainer:[0-9a-f]{12}: The command 'pip install'"):
        carry_out(machine.provider(trainer_image=None, base_image="python:3.13").plan_create(spec()))
    assert "BASE_IMAGE=python:3.13" in machine.runner.ran("docker build")[0]


def container(name: str, status: str, finished: str = "0001-01-01T00:00:00Z", cluster: str = "dev") -> str:
    """Return a node's container as Docker shows it."""
    return f"/{name}|{status}|{finished}|{cluster}\n"


def test_machines_are_the_containers_of_nodes(machine: Machine) -> None:
    provider = machine.provider()
    carry_out(provider.plan_create(spec(num_slices=8)))
    states = ("running", "paused", "exited", "dead", "restarting", "created", "")
    shown = container("dev-control-plane", "running")
    shown += "".join(
        container(f"dev-worker{index}", state, "2026-11-24T12:00:00.123456789Z")
        for index, state in enumerate(states, 1)
        if state
    )
    shown += container("dev-worker8", "exited", cluster="other")
    missing = "Error response from daemon: No such container: dev-worker7"
    machine.runner.script["docker container inspect"] = Result((), 1, shown, missing)
    machines = provider.machines("dev", [node for node in machine.api("dev").list("Node") if "worker" in str(node)])
    assert {name: (entry.state.value, entry.words) for name, entry in machines.items() if "worker" in name} == {
        "dev-worker1": ("running", "its container is running"),
        "dev-worker2": ("running", "its container is paused"),
        "dev-worker3": ("gone", "its container has ended"),
        "dev-worker4": ("gone", "its container has ended"),
        "dev-worker5": ("unknown", "its container is restarting"),
        "dev-worker6": ("unknown", "its container is created"),
        "dev-worker7": ("gone", "its container was removed"),
    }
    assert str(machines["dev-worker3"].stopped) == "2026-11-24 12:00:00.123456+00:00"
    (call,) = machine.runner.ran("docker container inspect")
    assert "dev-control-plane" in call and "dev-worker8" in call


@pytest.mark.parametrize(
    ("shown", "said", "message"),
    [
        ("", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock", "Cannot connect"),
        ("", "Error response from daemon: No such container: dev-worker1", "No such container"),
        (container("dev-control-plane", "exited"), "Error response from daemon: No such container: dev-worker1",
         "No such container"),
        (container("dev-control-plane", "running", cluster="other"), "", "dev-control-plane"),
    ],
)  # fmt: skip
def test_an_engine_without_the_control_plane_lists_no_machines(
    machine: Machine, shown: str, said: str, message: str
) -> None:
    provider = machine.provider()
    carry_out(provider.plan_create(spec()))
    machine.runner.script["docker container inspect"] = Result((), 1, shown, said)
    with pytest.raises(XpkError, match=f"cannot read the nodes of kind cluster 'dev' from Docker: .*{message}"):
        provider.machines("dev", machine.api("dev").list("Node"))
