"""With node autoprovisioning, queues have the quota of its limits, independent of existing slices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.capacity.gke.pools import add_pool
from tests.capacity.gke.site import Site
from xpk.capacity.gke.observed.slices import with_limits
from xpk.capacity.queues.planning import plan_create
from xpk.capacity.queues.request import QueueRequest
from xpk.model.accelerators import find_shape
from xpk.model.errors import ConflictError, UsageError
from xpk.model.specs import ClusterSpec

LIMITED: dict[str, Any] = {"enable_autoprovisioning": True, "autoprovisioning_max_chips": 128}


def test_the_quota_is_the_autoprovisioning_limit(site: Site) -> None:
    site.create(2, spot=True, **LIMITED)
    assert site.quotas() == {"v5litepod-16": 128}
    assert site.plan(2, spot=True, **LIMITED).steps == []
    assert site.plan(2, spot=True).steps == [], "a limit that is not repeated is kept"
    assert site.provider().plan_adapt("c").steps == []
    target = site.provider().target("c")
    assert target.capacities == {"v5litepod-16": ("spot",)} and target.autoprovisioned == {"v5litepod-16": "spot"}
    site.provider().plan_resize("c", 3, force=False).carry_out(lambda title: None)
    assert site.quotas() == {"v5litepod-16": 128}
    site.provider().plan_resize("c", 1, force=False).carry_out(lambda title: None)
    assert site.quotas() == {"v5litepod-16": 128} and site.plan(1, spot=True, **LIMITED).steps == []
    site.create(1, spot=True, enable_autoprovisioning=True, autoprovisioning_max_chips=64)
    assert site.quotas() == {"v5litepod-16": 64}


def test_without_any_slice(site: Site) -> None:
    with pytest.raises(UsageError, match="cannot be created") as caught:
        site.plan(0)
    assert "between 1 and 1024, got 0" in str(caught.value.problems)
    raised = site.plan(2, enable_autoprovisioning=True, autoprovisioning_max_chips=20)
    assert "raised from 20 to 32 chips, those of the slices" in " ".join(raised.notes) and raised.refusal is None
    cluster = next(item["body"] for item in raised.facts["changes"] if item["key"] == "create-cluster:c")
    limits = {item["resource_type"]: item["maximum"] for item in cluster["autoscaling"]["resource_limits"]}
    assert limits["tpu-v5-lite-podslice"] == 32
    site.create(0, **LIMITED)
    assert site.pools() == {"default-pool": "RUNNING"} and site.quotas() == {"v5litepod-16": 128}
    flavor = site.api.get("ResourceFlavor", "v5litepod-16")
    assert flavor["spec"]["nodeLabels"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert site.plan(0, **LIMITED).steps == [] and site.provider().plan_adapt("c").steps == []
    info = site.provider().describe("c")
    assert (info.state, info.num_slices, info.accelerator_type) == ("Ready", 0, "v5litepod-16")
    assert site.provider().target("c").autoprovisioned == {"v5litepod-16": "on-demand"}


def test_autoprovisioned_node_pools_are_not_managed(site: Site) -> None:
    site.create(1, **LIMITED)
    add_pool(site, "nap-1", "4x4")
    assert site.plan(1, **LIMITED).steps == [], "they are not among the requested slices"
    assert site.quotas() == {"v5litepod-16": 128}
    info = site.provider().describe("c")
    assert (info.state, info.num_slices, info.chips) == ("Ready", 2, 32)
    plan = site.provider(tpu_type="v5litepod-16").plan_resize("c", 2, force=False)
    plan.carry_out(lambda title: None)
    assert set(site.pools()) == {"default-pool", "c-np-0", "c-np-1", "nap-1"}
    site.provider().plan_resize("c", 0, force=False).carry_out(lambda title: None)
    assert set(site.pools()) == {"default-pool", "nap-1"} and site.quotas() == {"v5litepod-16": 128}


def test_types_that_share_a_limit_divide_it(site: Site) -> None:
    site.create(2, **LIMITED)
    site.create(1, "v5litepod-32")
    assert site.quotas() == {"v5litepod-16": 96, "v5litepod-32": 32}, "slices of other tools count"
    site.create(1, "v5litepod-32", **LIMITED)
    assert site.quotas() == {"v5litepod-16": 64, "v5litepod-32": 64}
    assert site.plan(2, **LIMITED).steps == site.plan(1, "v5litepod-32", **LIMITED).steps == []


def test_quotas_of_queues_do_not_exceed_the_autoprovisioning_limit(site: Site) -> None:
    site.create(1, **LIMITED)
    site.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    expected = QueueRequest(name="team", namespaces=("team",), quota=("6",))
    plan_create(site.api, expected).carry_out(lambda title: None)
    assert site.quotas() == {"v5litepod-16": 32}, "the rest of 128"
    assert site.plan(1, **LIMITED).steps == []
    site.provider().plan_resize("c", 2, force=False).carry_out(lambda title: None)
    site.provider().plan_resize("c", 1, force=False).carry_out(lambda title: None)
    assert site.quotas() == {"v5litepod-16": 32}
    with pytest.raises(
        ConflictError, match="5 slices of v5litepod-16 would be left, but queues have been allotted more"
    ):
        site.plan(1, enable_autoprovisioning=True, autoprovisioning_max_chips=80)
    with pytest.raises(ConflictError, match="3 slices of v5litepod-16 would be left"):
        site.plan(1, "v5litepod-32", **LIMITED)


def test_quotas_of_limits() -> None:
    def spec(kind: str, count: int) -> ClusterSpec:
        return ClusterSpec(name="c", shape=find_shape(kind), num_slices=count)

    def quotas(specs: list[ClusterSpec], most: int, *kinds: str, on: bool = True) -> dict[str, int]:
        limits = [{"resource_type": "cpu", "maximum": "9"}, {"resource_type": "tpu-v6e-slice", "maximum": str(most)}]
        autoscaling = {"enable_node_autoprovisioning": on, "resource_limits": limits}
        result = with_limits("c", specs, autoscaling, dict.fromkeys(kinds, "spot"))
        return {item.shape.name: item.quota for item in result}

    assert quotas([spec("v6e-16", 1)], 100, "v6e-16") == {"v6e-16": 96}, "only complete slices"
    assert quotas([spec("v6e-16", 1)], 8, "v6e-16") == {"v6e-16": 16}, "existing slices stay"
    assert quotas([spec("v6e-16", 1)], 100, "v6e-16", on=False) == {"v6e-16": 16}
    assert quotas([spec("v6e-16", 1)], 100, "v5p-8") == {"v6e-16": 16}, "types without a limit are unlimited"
    assert quotas([], 64, "v6e-16", "v6e-32") == {"v6e-16": 32, "v6e-32": 32}
