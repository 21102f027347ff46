"""Slices that are formed from cubes: the plan, the objects of the cluster, and the requests of workloads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.capacity.gke.site import Site
from xpk.capacity.gke.observed.slices import specs_of_pools
from xpk.capacity.nodes.inventory import shape_of
from xpk.capacity.queues.planning import plan_create
from xpk.capacity.queues.request import QueueRequest
from xpk.jobs.create.create import check_fits, choose_shape, read_queue
from xpk.model import super_slices
from xpk.model.accelerators import TOPOLOGY_LABEL, all_shapes
from xpk.model.errors import CapacityError, ConflictError, UsageError
from xpk.model.specs import WorkloadSpec
from xpk.render import render_workload

BLOCK = "r/reservationBlocks/b"
CUBES: dict[str, Any] = {"super_slicing": True, "reservation": (BLOCK,)}


@pytest.fixture
def cubes(site: Site) -> Site:
    """Return a project with a reservation of Cluster Director, whose block has room for eight cubes."""
    site.gke.add_reservation(
        "r", project="p", zone="us-central1-a", machine_type="tpu7x-standard-4t", count=128, dense=True
    )
    path = f"projects/p/zones/us-central1-a/reservations/{BLOCK}"
    site.gke.add_resource(path, "compute#reservationBlock", count=128, inUseCount=0)
    return site


def test_the_slices_that_cubes_form() -> None:
    whole, with_parts = (super_slices.formable(parts=parts) for parts in (False, True))
    assert [shape.topology for shape in with_parts if shape not in whole] == ["2x2x1", "2x2x2", "2x2x4", "2x4x4"]
    for shape in whole:
        sides = [int(side) for side in str(shape.topology).split("x")]
        assert shape.hosts % 16 == 0 and sides == sorted(sides) and not any(side % 4 for side in sides)
    assert max(shape.chips for shape in whole) == 9216
    assert {shape.family for shape in all_shapes() if super_slices.is_formable(shape, parts=True)} == {"tpu7x"}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tpu7x-4x4x6", "a side is not a multiple of 4"),
        ("tpu7x-4x8x4", "use tpu7x-4x4x8"),
        ("tpu7x-16x24x28", "it has 168 cubes"),
        ("tpu7x-4x4x8", ""),
        ("tpu7x-2x2x2", ""),
        ("v6e-3x3", ""),
        ("tpu7x-256", ""),
    ],
)
def test_topologies_that_cubes_cannot_form_are_explained(name: str, problem: str) -> None:
    assert problem in super_slices.topology_problem(name)
    assert bool(problem) == bool(super_slices.topology_problem(name))


def test_a_cluster_of_cubes(cubes: Site) -> None:
    plan = cubes.plan(3, "tpu7x-128", **CUBES)
    commands = [line for step in plan.steps for line in step.commands]
    policy = "tpu7x-128-4x4x4-ss-placement-policy"
    assert any(f"{policy} " in line and "--accelerator-topology-mode=provision_only" in line for line in commands)
    assert any("clusters create c" in line and "--enable-slice-controller" in line for line in commands)
    pools = [line for line in commands if "node-pools create" in line]
    assert len(pools) == 3 and all(
        "--num-nodes=16" in line and f"--placement-policy={policy}" in line for line in pools
    )
    assert any("cubes that form slices for workloads" in note for note in plan.notes)
    assert any("slice controller" in note for note in plan.notes)
    plan.carry_out(lambda title: None)

    assert cubes.cluster["addons_config"]["slice_controller_config"]["enabled"]
    flavor = cubes.api.get("ResourceFlavor", "tpu7x-128")["spec"]
    assert flavor["topologyName"] == "super-slice-topology" and flavor["nodeLabels"] == super_slices.flavor_labels()
    levels = cubes.api.get("Topology", "super-slice-topology")["spec"]["levels"]
    assert [item["nodeLabel"] for item in levels] == super_slices.levels(parts=False)
    assert cubes.api.get("AdmissionCheck", "ss-kueue-operator")["spec"]["controllerName"] == "accelerator.gke.io/slice"
    checks = cubes.api.get("ClusterQueue", "cluster-queue")["spec"]["admissionChecksStrategy"]["admissionChecks"]
    assert checks == [{"name": "ss-kueue-operator", "onFlavors": ["tpu7x-128"]}]
    assert cubes.quotas() == {"tpu7x-128": 192}
    assert cubes.plan(3, "tpu7x-128", **CUBES).steps == []
    assert cubes.provider().target("c").super_slicing == "tpu7x-128"

    cubes.provider().plan_resize("c", 4, force=False).carry_out(lambda title: None)
    assert cubes.quotas() == {"tpu7x-128": 256}
    assert cubes.plan(4, "tpu7x-128", **CUBES).steps == [], "the fourth one is a cube as well"
    with pytest.raises(ConflictError, match="was created with --super-slicing"):
        cubes.plan(4, "tpu7x-128", reservation=(BLOCK,))


def test_cubes_of_googles_xpk_are_recognized(cubes: Site) -> None:
    pool = {
        "status": "RUNNING",
        "initial_node_count": 16,
        "config": {"machine_type": "tpu7x-standard-4t"},
        "placement_policy": {"policy_name": "tpu7x-128-4x4x4-ss-placement-policy"},
    }
    (spec,) = specs_of_pools("c", {"np-0": pool})
    assert (spec.shape.name, spec.num_slices, spec.super_slicing) == ("tpu7x-128", 1, True)
    (other,) = specs_of_pools(
        "c", {"np-0": pool | {"placement_policy": {"policy_name": "tpu7x-128-4x4x4-placement-policy"}}}
    )
    assert (other.shape.name, other.super_slicing) == ("tpu7x-128", False)
    cubes.create(1, "tpu7x-128", **CUBES)
    node = cubes.api.list("Node")[0]
    labels = {key: value for key, value in node["metadata"]["labels"].items() if key != "xpk.dev/accelerator-type"}
    formed = {**node, "metadata": {**node["metadata"], "labels": labels | {TOPOLOGY_LABEL: "4x4x8"}}}
    shape = shape_of(formed)
    assert shape and shape.name == "tpu7x-128", "a node of a formed slice is still one of a cube"


def test_queues_of_teams_have_the_check_as_well(cubes: Site) -> None:
    cubes.create(3, "tpu7x-128", **CUBES)
    request = QueueRequest(name="red", namespaces=("red",), quota=("1",), create_namespace=True)
    plan_create(cubes.api, request).carry_out(lambda title: None)
    for name in ("red", "cluster-queue"):
        spec = cubes.api.get("ClusterQueue", name)["spec"]
        assert spec["admissionChecksStrategy"]["admissionChecks"][0]["name"] == "ss-kueue-operator"
    assert cubes.plan(3, "tpu7x-128", **CUBES).steps == []


def workload(site: Site, tpu_type: str | None, num_slices: int = 1) -> WorkloadSpec:
    """Return a workload on cluster `c`."""
    queue = read_queue(site.api, "multislice-queue", "default", cluster="c")
    target = site.provider().target("c")
    shape, within = choose_shape(queue, tpu_type, target, cluster="c")
    return WorkloadSpec(
        name="w", shape=shape, within=within, num_slices=num_slices, command=("true",), target=target, image="i"
    )


@pytest.mark.parametrize(
    ("tpu_type", "topology", "hosts"),
    [(None, "4x4x4", 16), ("tpu7x-4x4x8", "4x4x8", 32), ("tpu7x-384", "4x4x12", 48)],
)
def test_workloads_request_slices_of_cubes(cubes: Site, tpu_type: str | None, topology: str, hosts: int) -> None:
    cubes.create(3, "tpu7x-128", **CUBES)
    (jobset,) = render_workload(workload(cubes, tpu_type))
    assert not any("exclusive-topology" in key for key in jobset["metadata"]["annotations"])
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["parallelism"] == hosts
    assert job["template"]["metadata"]["annotations"] == {
        "kueue.x-k8s.io/podset-required-topology": "cloud.google.com/gce-topology-block",
        "kueue.x-k8s.io/podset-slice-required-topology": "cloud.google.com/gke-tpu-partition-4x4x4-id",
        "kueue.x-k8s.io/podset-slice-size": "16",
        "cloud.google.com/gke-tpu-slice-topology": topology,
    }
    selector = job["template"]["spec"]["nodeSelector"]
    assert "cloud.google.com/gke-tpu-topology" not in selector, "nodes have it only once the slice is formed"
    assert selector["cloud.google.com/gke-tpu-partition-4x4x4-state"] == "HEALTHY"


def test_workloads_that_cubes_cannot_serve_are_refused(cubes: Site) -> None:
    cubes.create(3, "tpu7x-128", **CUBES)
    queue = read_queue(cubes.api, "multislice-queue", "default", cluster="c")
    check_fits(cubes.api, queue, workload(cubes, "tpu7x-128", 3), cluster="c")
    with pytest.raises(CapacityError, match="1 slices of tpu7x-512 need 256"):
        check_fits(cubes.api, queue, workload(cubes, "tpu7x-512"), cluster="c")
    with pytest.raises(UsageError, match="cubes cannot form a slice of 4x8x4"):
        workload(cubes, "tpu7x-4x8x4")
    with pytest.raises(UsageError, match="are parts of a cube, which workloads of cluster 'c' cannot use"):
        workload(cubes, "tpu7x-16")
    with pytest.raises(UsageError, match="has slices of type tpu7x-128, not v6e-16"):
        workload(cubes, "v6e-16")


def test_parts_of_cubes(cubes: Site) -> None:
    cubes.create(1, "tpu7x-128", **CUBES, sub_slicing=True)
    levels = cubes.api.get("Topology", "super-slice-topology")["spec"]["levels"]
    assert [item["nodeLabel"] for item in levels] == super_slices.levels(parts=True)
    node = next(node for node in cubes.api.list("Node") if node["metadata"]["name"].startswith("c-np-0"))
    assert {item["nodeLabel"] for item in levels[:-1]} <= set(node["metadata"]["labels"])
    (jobset,) = render_workload(workload(cubes, "tpu7x-2x2x2"))
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert pod["metadata"]["annotations"]["kueue.x-k8s.io/podset-slice-size"] == "2"
    assert pod["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-partition-2x2x2-state"] == "HEALTHY"
    with pytest.raises(ConflictError, match="was created with --sub-slicing"):
        cubes.plan(1, "tpu7x-128", **CUBES)


@pytest.mark.parametrize(
    ("tpu_type", "changes", "problem"),
    [
        ("tpu7x-256", {}, "formed from tpu7x-128, not from tpu7x-256"),
        ("v6e-16", {}, "formed from tpu7x-128, not from v6e-16"),
        ("tpu7x-128", {"reservation": ()}, "--super-slicing requires --reservation in All Capacity mode"),
        ("tpu7x-128", {"reservation": ("r",)}, "requires a block: --reservation r/reservationBlocks/B"),
        ("tpu7x-128", {"release_channel": "STABLE"}, "requires --release-channel rapid, got stable"),
        ("tpu7x-128", {"super_slicing": False, "sub_slicing": True}, "add --super-slicing"),
        ("tpu7x-128", {"enable_autoprovisioning": True}, "--super-slicing and --enable-autoprovisioning exclude"),
    ],
)
def test_requests_that_cannot_have_cubes(cubes: Site, tpu_type: str, changes: dict[str, Any], problem: str) -> None:
    options = {**CUBES, **changes}
    try:
        plan = cubes.plan(3, tpu_type, **options)
    except UsageError as error:
        assert any(problem in line for line in error.problems), error.problems
    else:  # the plan is shown, and refused when it is carried out
        assert any(problem in line for line in plan.lacking)


def test_an_old_control_plane_cannot_form_slices(cubes: Site) -> None:
    with pytest.raises(UsageError, match=r"requires GKE 1\.35\.2-gke\.1842000 or newer, got 1\.34"):
        cubes.plan(1, "tpu7x-128", **CUBES, gke_version="1.34", release_channel="RAPID")
