"""Clusters of Google's xpk, whose flavors have names of number and type, or arbitrary ones."""

from __future__ import annotations

from typing import Any

import pytest

from xpk.api.base import Obj
from xpk.capacity.queues.planning import plan_create
from xpk.capacity.queues.reading import Queues
from xpk.capacity.queues.request import QueueRequest
from xpk.jobs.create.create import check_fits, choose_shape, read_queue
from xpk.jobs.status import queue_position
from xpk.jobs.status.fields import Snapshot
from xpk.model.accelerators import find_shape
from xpk.model.errors import CapacityError, ConflictError, UsageError
from xpk.model.specs import Target, WorkloadSpec
from xpk.testing import FakeApi

V5E_16 = find_shape("v5litepod-16")
NAMES = ["2xv5litepod-16", "2xv5e-16", "the-chips"]


def kueue(kind: str, name: str, spec: Obj, **more: Any) -> Obj:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name, **more}, "spec": spec}


def upstreams(flavor: str, chips: int = 32) -> list[Obj]:
    """Return the queues of two slices as Google's xpk creates them."""
    labels = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    quota = {"name": "google.com/tpu", "nominalQuota": chips}
    group = {"coveredResources": ["google.com/tpu"], "flavors": [{"name": flavor, "resources": [quota]}]}
    preemption = {"reclaimWithinCohort": "Never", "withinClusterQueue": "LowerPriority"}
    own = {"namespaceSelector": {}, "preemption": preemption, "resourceGroups": [group]}
    return [
        kueue("ResourceFlavor", flavor, {"nodeLabels": labels}),
        kueue("ClusterQueue", "cluster-queue", own),
        kueue("LocalQueue", "multislice-queue", {"clusterQueue": "cluster-queue"}, namespace="default"),
    ]


@pytest.mark.parametrize("flavor", NAMES)
def test_workloads_use_the_type_of_another_tools_queue(flavor: str) -> None:
    api = FakeApi(upstreams(flavor))
    queue = read_queue(api, None, "default", cluster="c")
    for asked in (None, "v5litepod-16", "v5e-16"):
        assert choose_shape(queue, asked, cluster="c") == (V5E_16, None)
    with pytest.raises(UsageError, match="has slices of type v5litepod-16, not v5litepod-8"):
        choose_shape(queue, "v5litepod-8", cluster="c")
    target = Target(emulated=False, sets_slice_environment=False, output_root="gs://b")
    asked_for: dict[str, Any] = {"name": "w", "shape": V5E_16, "command": ("true",), "target": target, "image": "i"}
    check_fits(api, queue, WorkloadSpec(num_slices=2, **asked_for), cluster="c")
    with pytest.raises(CapacityError, match=r"3 slices of v5litepod-16 need 48 google.com/tpu; .* has 32 in all"):
        check_fits(api, queue, WorkloadSpec(num_slices=3, **asked_for), cluster="c")


@pytest.mark.parametrize("flavor", NAMES)
def test_quotas_are_shown_in_slices(flavor: str) -> None:
    api = FakeApi(upstreams(flavor))
    (info,) = Queues.read(api).infos()
    (share,) = info.shares
    assert (share.type, share.quota, info.name) == ("v5litepod-16", 2, "multislice-queue")
    with pytest.raises(ConflictError, match=f"its quota is of flavor '{flavor}', not v5litepod-16"):
        plan_create(api, QueueRequest(name="red", namespaces=("default",), quota=("v5litepod-16=1",)))
    assert {verb for verb, _, _ in api.calls} == {"list", "get"}


def test_pending_workloads_see_only_the_quota_of_their_type() -> None:
    theirs, others = upstreams("2xv5litepod-16"), upstreams("1xv5litepod-8", 8)
    flavors = theirs[1]["spec"]["resourceGroups"][0]["flavors"]
    flavors += others[1]["spec"]["resourceGroups"][0]["flavors"]
    pods = {"count": 4, "template": {"spec": {"containers": [{"resources": {"requests": {"google.com/tpu": "4"}}}]}}}
    waiting = kueue("Workload", "w", {"queueName": "multislice-queue", "podSets": [pods]}, namespace="default")
    snapshot = Snapshot(jobsets=[], workloads=[waiting], local_queues=[theirs[2]], cluster_queues=[theirs[1]])
    (quota,) = queue_position.quota_for(waiting, snapshot, "v5litepod-16")
    assert (quota.flavor, quota.quota) == ("2xv5litepod-16", 32)


def test_a_flavor_without_an_accelerator_keeps_its_name() -> None:
    objects = upstreams("cpu-user")
    objects[0]["spec"] = {"nodeLabels": {"cloud.google.com/gke-nodepool": "cpu-np"}}
    assert list(read_queue(FakeApi(objects), None, "default", cluster="c").most) == ["cpu-user"]
    assert list(read_queue(FakeApi(objects[1:]), None, "default", cluster="c").most) == ["cpu-user"]
