"""Slices of queued provisioning: Kueue's configuration for nodes that GKE creates on request."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.capacity.gke.site import Site
from tests.waiting import until
from xpk.api.base import Obj
from xpk.capacity.queues.planning import plan_create
from xpk.capacity.queues.request import QueueRequest
from xpk.jobs.create.create import check_fits, check_run_duration, read_queue
from xpk.model.accelerators import find_shape
from xpk.model.errors import CapacityError, ConflictError, NotFoundError, UsageError
from xpk.model.specs import Target, WorkloadSpec

QUEUED: dict[str, Any] = {"flex": True, "queued_provisioning": True}
CHECK, CONFIG = ("AdmissionCheck", "dws-prov"), ("ProvisioningRequestConfig", "dws-config")
TYPE, OTHER = "v5litepod-16", "v5litepod-32"


def checks(site: Site, queue: str = "cluster-queue") -> list[Obj]:
    """Return the admission checks of a ClusterQueue."""
    strategy = site.api.get("ClusterQueue", queue)["spec"].get("admissionChecksStrategy", {})
    result: list[Obj] = strategy.get("admissionChecks", [])
    return result


def on(*types: str) -> list[Obj]:
    """Return the checks of a queue in which these types are queued."""
    return [{"name": "dws-prov", "onFlavors": list(types)}]


def namespace(site: Site, name: str) -> None:
    """Create a namespace."""
    site.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def team(site: Site, name: str, *quota: str) -> None:
    """Create a queue with its own namespace."""
    plan_create(site.api, QueueRequest(name=name, namespaces=(name,), quota=quota)).carry_out(lambda title: None)


def _is_gone(site: Site, name: str) -> bool:
    return name not in site.pools()


def remove_pools(site: Site, *names: str) -> None:
    """Delete node pools as with gcloud."""
    google = site.provider()._google
    for name in names:
        google.call("delete_node_pool", {"name": f"projects/p/locations/us-central1/clusters/c/nodePools/{name}"})
        until(partial(_is_gone, site, name), seconds=60)


def workload(**given: Any) -> WorkloadSpec:
    """Return a workload of slices."""
    target = Target(emulated=False, sets_slice_environment=False, output_root="gs://b")
    fields: dict[str, Any] = {"name": "w", "num_slices": 2, "command": ("true",), "target": target, "image": "i"}
    return WorkloadSpec(**{**fields, **given})


def test_the_queue_requests_slices_from_gke(site: Site) -> None:
    plan = site.plan(2, TYPE, **QUEUED)
    assert any("an admission check that requests slices from GKE" in step.title for step in plan.steps)
    plan.carry_out(lambda title: None)
    assert checks(site) == on(TYPE)
    assert site.api.get(*CHECK)["spec"] == {
        "controllerName": "kueue.x-k8s.io/provisioning-request",
        "parameters": {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "dws-config"},
    }
    config = site.api.get(*CONFIG)["spec"]
    assert config["provisioningClassName"] == "queued-provisioning.gke.io"
    assert config["managedResources"] == ["google.com/tpu"]
    flavor = site.api.get("ResourceFlavor", TYPE)["spec"]
    assert flavor["nodeLabels"]["cloud.google.com/gke-queued"] == "true"
    assert [item["key"] for item in flavor["tolerations"]] == ["cloud.google.com/gke-queued"]


def test_the_quota_is_what_pools_without_nodes_may_grow_to(site: Site) -> None:
    site.create(2, TYPE, **QUEUED)
    assert not site.api.list("Node") or all("np" not in node["metadata"]["name"] for node in site.api.list("Node"))
    assert site.quotas() == {TYPE: 32}
    queue = read_queue(site.api, None, "default", cluster="c")
    check_fits(site.api, queue, workload(shape=find_shape(TYPE)), cluster="c")
    with pytest.raises(CapacityError):
        check_fits(site.api, queue, workload(shape=find_shape(TYPE), num_slices=3), cluster="c")
    assert site.plan(2, TYPE, **QUEUED).steps == []
    assert site.provider().plan_adapt("c").steps == []
    assert site.provider().describe("c").state == "Ready"
    site.provider().plan_resize("c", 3, force=False).carry_out(lambda title: None)
    assert site.quotas() == {TYPE: 48} and checks(site) == on(TYPE)
    assert all(pool["queued_provisioning"]["enabled"] for pool in site.cluster["node_pools"][1:])
    site.provider().plan_resize("c", 1, force=False).carry_out(lambda title: None)
    assert site.quotas() == {TYPE: 16} and site.plan(1, TYPE, **QUEUED).steps == []


def test_only_types_with_queued_provisioning_have_the_admission_check(site: Site) -> None:
    site.create(1, OTHER)
    assert checks(site) == []
    with pytest.raises(NotFoundError):
        site.api.get(*CHECK)
    site.create(1, TYPE, **QUEUED)
    assert checks(site) == on(TYPE)
    assert "tolerations" not in site.api.get("ResourceFlavor", OTHER)["spec"]
    queue = read_queue(site.api, None, "default", cluster="c")
    check_run_duration(queue, workload(shape=find_shape(TYPE), max_run_seconds=60), cluster="c")
    with pytest.raises(UsageError, match="those of v5litepod-32 on cluster 'c' are not"):
        check_run_duration(queue, workload(shape=find_shape(OTHER), max_run_seconds=60), cluster="c")


def test_queues_of_teams_have_the_same_admission_checks(site: Site) -> None:
    site.create(1, OTHER)
    site.create(2, TYPE, **QUEUED)
    for name in ("red", "blue"):
        namespace(site, name)
    team(site, "red", f"{TYPE}=1", f"{OTHER}=1")
    team(site, "blue", f"{TYPE}=1")
    assert checks(site, "red") == checks(site, "blue") == checks(site) == on(TYPE)
    assert site.plan(2, TYPE, **QUEUED).steps == []
    plain = site.api.get("ClusterQueue", "red")
    del plain["spec"]["admissionChecksStrategy"]  # as created by a version of xpk without the admission check
    site.api.apply(plain)
    assert checks(site, "red") == []
    assert any("set up queue" in step.title for step in site.plan(2, TYPE, **QUEUED).steps)
    site.create(2, TYPE, **QUEUED)
    assert checks(site, "red") == on(TYPE) and site.plan(2, TYPE, **QUEUED).steps == []


def test_the_admission_check_is_removed_with_the_last_queued_slice(site: Site) -> None:
    site.create(1, OTHER)
    site.create(2, TYPE, **QUEUED)
    namespace(site, "red")
    team(site, "red", f"{OTHER}=1")
    remove_pools(site, "c-np-1", "c-np-2")
    site.provider().plan_adapt("c").carry_out(lambda title: None)
    assert site.quotas() == {OTHER: 0} and checks(site) == checks(site, "red") == []
    for item in (CHECK, CONFIG):
        with pytest.raises(NotFoundError):
            site.api.get(*item)
    assert site.provider().plan_adapt("c").steps == []


def test_an_admission_check_left_by_an_interruption_is_removed(site: Site) -> None:
    site.create(1, TYPE, **QUEUED)
    left = [site.api.get(*item) for item in (CHECK, CONFIG)]
    remove_pools(site, "c-np-0")
    site.create(1, TYPE)
    for item in left:
        site.api.apply(item)
    assert any("set up queue" in step.title for step in site.plan(1, TYPE).steps)
    site.create(1, TYPE)
    assert site.plan(1, TYPE).steps == []


def test_an_admission_check_of_another_tool_is_kept(site: Site) -> None:
    for kind, name in (CHECK, CONFIG):
        site.api.create({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}})
    site.create(1, TYPE)
    assert site.plan(1, TYPE).steps == [] and site.api.get(*CHECK) and site.api.get(*CONFIG)


def test_slices_of_one_type_have_the_same_capacity_type(site: Site) -> None:
    site.create(1, TYPE, **QUEUED)
    with pytest.raises(ConflictError, match="slice c-np-0 was created with --queued-provisioning"):
        site.plan(2, TYPE, flex=True)
    site.create(1, OTHER)
    with pytest.raises(ConflictError, match="slice c-np-1 was created without --queued-provisioning"):
        site.plan(2, OTHER, **QUEUED)


def test_queued_provisioning_lasts_at_most_seven_days() -> None:
    assert workload(shape=find_shape(TYPE), max_run_seconds=604_800).problems() == []
    for seconds in (0, 604_801):
        (problem,) = workload(shape=find_shape(TYPE), max_run_seconds=seconds).problems()
        assert problem.startswith("--max-run-duration") and "7 days" in problem
