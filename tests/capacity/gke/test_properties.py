"""Any request that is executed leaves nothing to do, and every type's pools are consistent."""

from __future__ import annotations

import ipaddress
import itertools
import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.cloud import container_v1, container_v1beta1
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.capacity.gke.site import QUOTAS, Site
from tools.gke_emulator.emulator import GkeEmulator
from xpk.capacity.gke.desired import request_bodies
from xpk.capacity.gke.desired.limits import RESERVED_ADDRESSES, quota_of
from xpk.capacity.gke.desired.networks import DATA_NICS, data_networks, network_limits
from xpk.capacity.gke.observed.slices import specs_of_pools
from xpk.capacity.gke.observed.state import shape_of_pool
from xpk.capacity.gke.request.option_problems import MAINTENANCE_INTERVALS, checked
from xpk.capacity.gke.request.options import GkeOptions
from xpk.model.accelerators import SliceShape, all_shapes

# One type of each kind: single-host and multi-host, compact or workload placement, GPUs, CPUs.
TYPES = [
    "v5litepod-4",
    "v5litepod-16",
    "v5p-16",
    "v6e-16",
    "tpu7x-16",
    "tpu7x-2",
    "l4-1",
    "h100-80gb-8",
    "h100-mega-80gb-8",
    "h200-141gb-8",
    "n2-standard-32-2",
]
PLENTY = {**QUOTAS, "CPUS": 10**6, "NVIDIA_L4_GPUS": 1000}
SWITCHES = ["private", "enable_workload_identity", "enable_gcsfuse_csi_driver", "enable_lustre_csi_driver",
            "enable_gcpfilestore_csi_driver", "enable_autoprovisioning", "enable_pd_csi_driver"]  # fmt: skip
REQUEST = GkeOptions(project="p", zone="us-central1-a", on_demand=True)


@pytest.fixture(scope="module")
def gke() -> Iterator[GkeEmulator]:
    with GkeEmulator(speed=20_000, quotas=PLENTY) as emulator:
        yield emulator


@contextmanager
def empty_site(gke: GkeEmulator) -> Iterator[Site]:
    """Yield a project without clusters on a running emulator."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), gke)
        site.environ["XPK_GKE_POLL_SECONDS"] = "0.01"
        try:
            yield site
        finally:
            site.provider().plan_delete("c", force=True).carry_out(lambda title: None)


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    """Return options of one create."""
    result: dict[str, Any] = {draw(st.sampled_from(["on_demand", "spot", "flex"])): True}
    result |= dict.fromkeys(draw(st.sets(st.sampled_from(SWITCHES), max_size=4)), True)
    if draw(st.booleans()):
        result["authorized_networks"] = tuple(
            draw(st.sets(st.sampled_from(["10.0.0.0/8", "192.0.2.1/32"]), min_size=1))
        )
    if draw(st.booleans()):
        result["host_maintenance_interval"] = draw(st.sampled_from(MAINTENANCE_INTERVALS))
    if draw(st.booleans()):
        result["gke_version"] = draw(st.sampled_from(["1.34", "1.33"]))
    if draw(st.booleans()):
        result["custom_nodepool_arguments"] = ("--disk-size=200", "--node-taints=team=a:NoSchedule")
    return result


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(TYPES), st.integers(1, 3)), min_size=1, max_size=2, unique_by=lambda t: t[0]),
    options(),
)
def test_an_executed_plan_leaves_nothing_to_do(
    gke: GkeEmulator, wanted: list[tuple[str, int]], asked: dict[str, Any]
) -> None:
    with empty_site(gke) as site:
        for tpu_type, count in wanted:
            site.create(count, tpu_type, **asked)
        for tpu_type, count in wanted:
            assert [step.title for step in site.plan(count, tpu_type, **asked).steps] == []
        counts = {
            item.shape.name: item.num_slices
            for item in specs_of_pools("c", site.provider()._pools_now("c", site.place))
        }
        assert counts == dict(wanted)


@pytest.mark.parametrize("family", sorted({shape.family for shape in all_shapes()}))
def test_a_pool_of_every_type_is_one_slice_and_is_read_as_such(family: str) -> None:
    for shape in (item for item in all_shapes() if item.family == family):
        check_pool(shape)


def check_pool(shape: SliceShape) -> None:
    networks = data_networks("c", "us-central1", shape, 1)
    pool = request_bodies.pool_body("c-np-0", shape, REQUEST, None, None, networks)
    message = json_format.ParseDict(pool, container_v1.NodePool.pb()())  # an unknown field raises an error
    sides = math.prod(map(int, shape.topology.split("x"))) if shape.topology else shape.chips
    assert shape.chips == sides == shape.hosts * shape.chips_per_host
    assert message.initial_node_count * shape.chips_per_host == shape.chips
    several = shape.kind == "tpu" and shape.hosts > 1
    placed = bool(message.placement_policy.tpu_topology), bool(message.placement_policy.policy_name)
    by_policy = (several and shape.family.startswith("tpu7")) or shape.family == "gb200"
    assert placed == (several and not by_policy, by_policy)
    assert shape_of_pool(pool) == shape
    managed = bool(message.network_config.accelerator_network_profile)
    assert len(message.network_config.additional_node_network_configs) == DATA_NICS.get(shape.family, 0)
    assert not (networks and managed), "GKE creates networks, or we do"
    periodic = request_bodies.pool_body(
        "c-np-0", shape, replace(REQUEST, host_maintenance_interval="PERIODIC"), None, None, networks
    )
    assert request_bodies.needs_beta(periodic) and not request_bodies.needs_beta(pool)
    beta = json_format.ParseDict(periodic, container_v1beta1.NodePool.pb()())
    assert beta.config.host_maintenance_policy.maintenance_interval == 2  # PERIODIC
    if shape.kind != "cpu":  # without our label, like a pool of another tool
        del pool["config"]["labels"]
        assert shape_of_pool(pool) == shape


@settings(max_examples=60)
@given(st.sampled_from(sorted(DATA_NICS)), st.integers(1, 2048), st.sampled_from(["us-east5", "europe-west4"]))
def test_data_networks_hold_all_hosts_and_do_not_overlap(family: str, hosts: int, region: str) -> None:
    shape = next(item for item in all_shapes() if item.family == family)
    networks = data_networks("c", region, shape, hosts)
    blocks = [ipaddress.ip_network(item.block) for item in networks]
    assert len(blocks) == DATA_NICS[family]
    assert all(block.num_addresses - RESERVED_ADDRESSES >= hosts for block in blocks)
    assert all(block.subnet_of(ipaddress.ip_network("192.168.0.0/16")) for block in blocks)  # type: ignore[arg-type]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(blocks, 2))
    assert len({name for item in networks for name in item.names}) == 3 * len(networks)
    assert all(limit.fits is not False for limit in network_limits(networks, {}, hosts, None))


@pytest.mark.parametrize("spot", [False, True])
def test_every_type_has_a_quota_with_a_location(spot: bool) -> None:
    for shape in all_shapes():
        name, info = quota_of(shape, spot=spot)
        assert name and (info is None or info.endswith("-per-project-region"))
        if shape.kind != "cpu":
            assert ("preemptible" in name.lower()) == spot


def test_fields_of_every_flag_are_fields_of_the_api() -> None:
    everything: dict[str, Any] = dict.fromkeys(SWITCHES, True)
    everything |= dict.fromkeys(("spot", "enable_private_endpoint", "enable_master_global_access"), True)
    everything |= dict.fromkeys(("enable_parallelstore_csi_driver", "enable_legacy_lustre_port"), True)
    everything |= {"private_endpoint_subnetwork": "s", "authorized_networks": ("10.0.0.0/8",)}
    request = checked(GkeOptions(project="p", zone="us-central1-a", **everything), command="create")
    for update in request_bodies.changeable(request).values():
        assert json.dumps(update)
    json_format.ParseDict(request_bodies.changeable(request), container_v1.Cluster.pb()())
