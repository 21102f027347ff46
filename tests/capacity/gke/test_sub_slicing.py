"""Slices that workloads share in parts: the configuration of the cluster and the requests of workloads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.capacity.gke.site import Site
from xpk.jobs.create.create import check_fits, choose_shape, read_queue
from xpk.model import sub_slices
from xpk.model.accelerators import all_shapes, find_shape
from xpk.model.errors import CapacityError, ConflictError, UsageError
from xpk.model.specs import WorkloadSpec
from xpk.render import render_workload

SHARED: dict[str, Any] = {"sub_slicing": True, "reservation": ("r",), "zone": "us-east5-a"}


@pytest.fixture
def shared(site: Site) -> Site:
    """Return a project with v6e reservations: `r` is Cluster Director's, `plain` is not."""
    for name, dense in (("r", True), ("plain", False)):
        site.gke.add_reservation(
            name, project="p", zone="us-east5-a", machine_type="ct6e-standard-4t", count=64, dense=dense
        )
    return site


def test_parts_of_a_slice() -> None:
    assert [part.topology for part in sub_slices.parts(find_shape("v6e-256"))] == [
        "16x16", "8x16", "8x8", "4x8", "4x4", "2x4",
    ]  # fmt: skip
    assert sub_slices.levels(find_shape("v6e-16")) == [
        "cloud.google.com/gke-tpu-slice-4x4-id", "cloud.google.com/gke-tpu-slice-2x4-id", "kubernetes.io/hostname",
    ]  # fmt: skip
    for shape in all_shapes():
        parts = sub_slices.parts(shape)
        assert bool(parts) == (shape.family == "v6e" and shape.chips >= 8)
        assert parts[:1] in ([], [shape]) and len(set(sub_slices.levels(shape))) == len(parts) + 1
        assert all(shape.hosts % part.hosts == 0 and part.machine_type == shape.machine_type for part in parts)


def test_a_cluster_with_shared_slices(shared: Site) -> None:
    shared.create(2, "v6e-16", **SHARED)
    flavor = shared.api.get("ResourceFlavor", "v6e-16")
    assert flavor["spec"]["topologyName"] == "sub-slice-topology"
    levels = shared.api.get("Topology", "sub-slice-topology")["spec"]["levels"]
    assert [item["nodeLabel"] for item in levels] == sub_slices.levels(find_shape("v6e-16"))
    assert shared.quotas() == {"v6e-16": 32}
    assert shared.plan(2, "v6e-16", **SHARED).steps == []
    shared.provider().plan_resize("c", 3, force=False).carry_out(lambda title: None)
    assert shared.plan(3, "v6e-16", **SHARED).steps == [], "a third one is shared as well"
    assert shared.provider().target("c").sub_slicing == "v6e-16"
    with pytest.raises(ConflictError, match="was created with --sub-slicing"):
        shared.plan(3, "v6e-16", reservation=("r",), zone="us-east5-a")
    with pytest.raises(ConflictError, match="slices of another type are shared already"):
        shared.plan(1, "v6e-8", **SHARED)


def test_workloads_take_parts_of_slices(shared: Site) -> None:
    shared.create(1, "v6e-16", **SHARED)
    target = shared.provider().target("c")
    queue = read_queue(shared.api, "multislice-queue", "default", cluster="c")

    def workload(tpu_type: str | None, num_slices: int = 1) -> WorkloadSpec:
        shape, within = choose_shape(queue, tpu_type, target, cluster="c")
        return WorkloadSpec(
            name="w", shape=shape, within=within, num_slices=num_slices, command=("true",), target=target, image="i"
        )

    for tpu_type, level, hosts in ((None, "4x4", 4), ("v6e-16", "4x4", 4), ("v6e-2x4", "2x4", 2)):
        (jobset,) = render_workload(workload(tpu_type))
        assert not any("exclusive-topology" in key for key in jobset["metadata"]["annotations"])
        job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        pod: dict[str, Any] = job["template"]
        assert pod["metadata"]["annotations"] == {
            "kueue.x-k8s.io/podset-slice-required-topology": f"cloud.google.com/gke-tpu-slice-{level}-id",
            "kueue.x-k8s.io/podset-slice-size": str(hosts),
            "cloud.google.com/gke-tpu-slice-topology": level,
        }
        assert pod["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4" and job["parallelism"] == hosts
    check_fits(shared.api, queue, workload("v6e-8", 2), cluster="c")
    with pytest.raises(CapacityError, match="3 slices of v6e-8 need 24"):
        check_fits(shared.api, queue, workload("v6e-8", 3), cluster="c")
    with pytest.raises(UsageError, match="has slices of type v6e-16, not v6e-32"):
        workload("v6e-32")


def test_sharing_slices_is_rejected_where_unsupported(shared: Site) -> None:
    with pytest.raises(UsageError) as caught:
        shared.plan(1, "v6e-16", sub_slicing=True, zone="us-east5-a")
    assert any("--sub-slicing requires --reservation" in problem for problem in caught.value.problems)
    with pytest.raises(UsageError) as caught:
        shared.plan(1, "v5p-16", **SHARED)
    assert any("slices of v5p-16 cannot be shared" in problem for problem in caught.value.problems)
    with pytest.raises(ConflictError, match="is not a Cluster Director reservation"):
        shared.plan(1, "v6e-16", **{**SHARED, "reservation": ("plain",)})
    shared.create(1, "v6e-16", reservation=("plain",), zone="us-east5-a")
    assert shared.provider().target("c").sub_slicing is None
    with pytest.raises(ConflictError, match="was created without --sub-slicing"):
        shared.plan(1, "v6e-16", **SHARED)
