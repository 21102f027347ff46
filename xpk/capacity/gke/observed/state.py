"""Observed state of a project, read in a few parallel calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from xpk.capacity.gke.cloud.client import Google, maybe
from xpk.capacity.gke.desired import request_bodies
from xpk.capacity.gke.desired.limits import quota_of
from xpk.capacity.gke.desired.networks import DATA_NICS, network_name, ours
from xpk.capacity.gke.request.options import GkeOptions, reservation_path
from xpk.capacity.provider import SliceInfo
from xpk.model.accelerators import SliceShape, all_shapes, find_shape
from xpk.model.capacities import FLEX, ON_DEMAND, SPOT, reserved
from xpk.model.errors import AuthorizationError, NotFoundError, UsageError, XpkError
from xpk.model.names import TYPE_ANNOTATION

Dict = dict[str, Any]

ENDED = ("DONE",)
GOING, LOST = "STOPPING", "ERROR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The part of a project that concerns one cluster; dictionaries are Google Cloud's responses.

    `operations`: running operations on the cluster.
    `networks`: the resources of its data networks, by name.
    `guess`: nothing was read, for lack of credentials.
    `autoprovisioned`: the types that GKE autoprovisions, with their capacity.
    """

    cluster: Dict | None = None
    pools: Mapping[str, Dict] = field(default_factory=dict)
    operations: tuple[Dict, ...] = ()
    server: Dict = field(default_factory=dict)
    policy: Dict | None = None
    region: Dict | None = None
    quota: Dict | None = None
    subnetwork: Dict | None = None
    networks: Mapping[str, Dict] = field(default_factory=dict)
    project: Dict | None = None
    reservations: Mapping[str, Dict | None] = field(default_factory=dict)
    machine: Dict | None = None
    guess: bool = False
    autoprovisioned: Mapping[str, str] = field(default_factory=dict)

    @property
    def location(self) -> str | None:
        """Return the location of the cluster's control plane."""
        return str(self.cluster["location"]) if self.cluster else None

    def slices(self, shape: SliceShape) -> dict[str, Dict]:
        """Return the node pools with slices of a type, by name; without autoprovisioned ones."""
        return {
            name: pool
            for name, pool in self.pools.items()
            if not is_autoprovisioned(pool) and shape_of_pool(pool) == shape
        }


def find_cluster(google: Google, project: str, name: str) -> Dict | None:
    """Return a project's cluster by its name, in any location. Raises UsageError if there are several."""
    listed = google.call("list_clusters", {"parent": f"projects/{project}/locations/-"})
    clusters: list[Dict] = [cluster for cluster in listed.get("clusters", []) if cluster["name"] == name]
    if len(clusters) > 1:
        places = ", ".join(str(cluster["location"]) for cluster in clusters)
        raise UsageError(
            f"several clusters in {project} are named '{name}': {places}",
            hint="xpk requires cluster names that are unique in the project",
        )
    return clusters[0] if clusters else None


def is_there(cluster: Mapping[str, Any] | None) -> bool:
    """Return whether a cluster is neither being created nor deleted, and can be reached."""
    return cluster is not None and cluster.get("status") not in ("PROVISIONING", "STOPPING")


def running_operations(google: Google, project: str, location: str, cluster: str) -> tuple[Dict, ...]:
    """Return the running operations on a cluster or its node pools."""
    listed = google.call("list_operations", {"parent": f"projects/{project}/locations/{location}"})
    return tuple(
        operation
        for operation in listed.get("operations", [])
        if operation.get("status") not in ENDED and is_about(operation, cluster)
    )


def is_about(operation: Mapping[str, Any], cluster: str, pool: str | None = None) -> bool:
    """Return whether an operation concerns a cluster (including its pools), or one of its pools."""
    link = str(operation.get("target_link", ""))
    if pool:
        return link.endswith(f"/clusters/{cluster}/nodePools/{pool}")
    return f"/clusters/{cluster}/" in f"{link}/"


def observe(google: Google, request: GkeOptions, name: str, shape: SliceShape) -> Observed:
    """Return the observed state; the calls run in parallel. Raises XpkError."""
    parent, region = request.parent, f"projects/{request.project}/regions/{request.region}"
    zone = f"projects/{request.project}/zones/{request.zone}"
    policy = request_bodies.policy_name(shape, super_slicing=request.super_slicing)
    _, quota = quota_of(shape, spot=request.capacity in ("spot", "flex"))
    paths = [reservation_path(reservation, request.project) for reservation in request.reservation]
    asks: dict[str, Callable[[], Dict | None]] = {
        "cluster": lambda: find_cluster(google, request.project, name),
        "server": lambda: google.call("get_server_config", {"name": parent}),
        "region": lambda: _if_permitted(lambda: google.compute(region)),
        "subnetwork": lambda: _if_permitted(
            lambda: google.compute(f"{region}/subnetworks/{request.subnetwork or 'default'}")
        ),
        "machine": lambda: _if_permitted(
            lambda: google.compute(f"{zone}/machineTypes/{request.default_pool_cpu_machine_type}")
        ),
    }
    if quota:
        asks["quota"] = lambda: _if_permitted(lambda: google.quota_info(request.project, quota))
    if policy:
        asks["policy"] = lambda: maybe(lambda: google.compute(f"{region}/resourcePolicies/{policy}"))
    for path in paths:
        asks[path] = partial(_reservation, google, _zonal(path, request.zone))
    if shape.family in DATA_NICS:
        asks["networks"] = partial(_networks, google, request.project, request.region, name)
        asks["project"] = lambda: _if_permitted(lambda: google.compute(f"projects/{request.project}"))
    google.check()
    with ThreadPoolExecutor(len(asks)) as executor:
        answers = {key: executor.submit(ask) for key, ask in asks.items()}
        results = {key: answer.result() for key, answer in answers.items()}
    reservations = {path: results.pop(path) for path in paths}
    cluster = results.pop("cluster")
    running = running_operations(google, request.project, cluster["location"], name) if cluster else ()
    if subnetwork := (cluster or {}).get("network_config", {}).get("subnetwork"):  # possibly of another project
        results["subnetwork"] = _if_permitted(lambda: google.compute(subnetwork))
    pools = {pool["name"]: pool for pool in (cluster or {}).get("node_pools", [])}
    known: Any = results
    return Observed(cluster=cluster, pools=pools, operations=running, reservations=reservations, **known)


def shape_of_pool(pool: Mapping[str, Any]) -> SliceShape | None:
    """Return the slice type of a node pool, None if it is not a slice."""
    config = pool.get("config", {})
    if label := config.get("labels", {}).get(TYPE_ANNOTATION):
        try:
            return find_shape(label)
        except UsageError:
            return None
    machine, count = config.get("machine_type"), int(pool.get("initial_node_count", 0))
    topology = pool.get("placement_policy", {}).get("tpu_topology")
    policy = pool.get("placement_policy", {}).get("policy_name", "")
    for shape in all_shapes():
        if shape.kind == "cpu" or shape.machine_type != machine:
            continue
        if (
            shape.topology == topology
            or (policy and policy in _policies(shape))
            or (not topology and not policy and shape.hosts == 1 and (count == 1 or shape.kind == "gpu"))
        ):
            return shape
    return None


def _policies(shape: SliceShape) -> list[str | None]:
    """Return the workload policies of a type's slices: connected ones, and cubes."""
    return [request_bodies.policy_name(shape, super_slicing=is_cube) for is_cube in (False, True)]


def is_autoprovisioned(pool: Mapping[str, Any]) -> bool:
    """Return whether GKE autoprovisioned a node pool: GKE deletes it when it is unused."""
    return bool(pool.get("autoscaling", {}).get("autoprovisioned"))


def capacity_of(pool: Mapping[str, Any]) -> str:
    """Return a node pool's capacity."""
    config = pool.get("config", {})
    if config.get("spot"):
        return SPOT
    if config.get("flex_start") or pool.get("queued_provisioning", {}).get("enabled"):
        return FLEX
    reservations = config.get("reservation_affinity", {}).get("values")
    return reserved(reservations[0]) if reservations else ON_DEMAND


def slice_of_pool(pool: Mapping[str, Any], occupied: Mapping[str, str]) -> SliceInfo:
    """Return a node pool as a slice. `occupied`: workloads by node pool name."""
    hosts = tuple(f"{pool['name']}/{host}" for host in range(int(pool.get("initial_node_count", 0))))
    name, shape = str(pool["name"]), shape_of_pool(pool)
    return SliceInfo(
        node_pool=name, hosts=hosts, workload=occupied.get(name), accelerator_type=shape.name if shape else ""
    )


def _zonal(path: str, zone: str) -> str:
    """Return the Compute Engine path of a reservation."""
    project, _, rest = path.removeprefix("projects/").partition("/")
    return f"projects/{project}/zones/{zone}/{rest}"


def _reservation(google: Google, path: str) -> Dict | None:
    """Return a reservation; None if it does not exist, {} if its project does not show it to this user."""
    try:
        return google.compute(path)
    except NotFoundError:
        return None
    except AuthorizationError:
        return {}


def _networks(google: Google, project: str, region: str, cluster: str) -> Dict:
    """Return the existing resources of a cluster's data networks, by name: networks, subnetworks, firewall rules."""
    project_path = f"projects/{project}"
    parts = (
        google.matching(f"{project_path}/global/networks", network_name(cluster, "[0-9]+")),
        google.matching(f"{project_path}/regions/{region}/subnetworks", f"{cluster}-{region}-sub-[0-9]+"),
        google.matching(f"{project_path}/global/firewalls", f"{cluster}-internal-[0-9]+"),
    )
    return {str(resource["name"]): resource for part in parts for resource in part}


def own_networks(google: Google, project: str, cluster: str, location: str) -> list[str]:
    """Return the data networks that xpk created for a cluster; none if this user may not list them."""
    path = f"projects/{project}/global/networks"
    try:
        listed = google.matching(path, network_name(cluster, "[0-9]+"))
    except AuthorizationError:
        return []
    return ours(listed, cluster, location)


def _if_permitted(ask: Callable[[], Dict]) -> Dict | None:
    """Return the result of a call, None if this user lacks the permission: such calls serve the plan's limits only."""
    try:
        return ask()
    except XpkError:
        return None
