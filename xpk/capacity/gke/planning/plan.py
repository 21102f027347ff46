"""Plan of a cluster: the request, the observed state, the changes between them, and limits. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from xpk.capacity.gke.desired import limits, request_bodies
from xpk.capacity.gke.desired.limits import Limit, Sizing
from xpk.capacity.gke.desired.networks import DATA_NICS, DataNetwork, data_networks, description, network_limits
from xpk.capacity.gke.desired.queued_provisioning import check_alike
from xpk.capacity.gke.observed.slices import specs_of_pools, with_limits
from xpk.capacity.gke.observed.state import Observed, capacity_of, shape_of_pool
from xpk.capacity.gke.planning.cost import Cost, check_cost, cost_of
from xpk.capacity.gke.planning.difference import Change, cluster_changes, covers, missing_names, pool_changes
from xpk.capacity.gke.planning.slicing import check_slicing, check_version, version_numbers
from xpk.capacity.gke.request.gcloud_arguments import default_nodes
from xpk.capacity.gke.request.option_lines import option_lines
from xpk.capacity.gke.request.options import GkeOptions, provisions_of, region_of, reservation_path
from xpk.capacity.plan.summary import cluster_summary
from xpk.model import names
from xpk.model.accelerators import SliceShape
from xpk.model.errors import CapacityError, ConflictError, NotFoundError, UsageError, XpkError
from xpk.model.specs import ClusterSpec

Dict = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The contents of a plan. `specs` are all slices of the cluster after it, by type.

    `asked`: requested options besides slices, as lines of text.
    """

    changes: list[Change]
    limits: list[Limit]
    cost: Cost
    specs: list[ClusterSpec]
    refusal: XpkError | None
    asked: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the requested options, the limits and the cost as lines of text."""
        return (*self.asked, *limits.lines_of(self.limits), f"{self.cost.line()}; slices only, no other machines")

    @property
    def facts(self) -> dict[str, Any]:
        """Return the changes, the limits and the cost as structured data."""
        return {
            "changes": [asdict(change) | {"key": change.key} for change in self.changes],
            "limits": [asdict(limit) | {"fits": limit.fits} for limit in self.limits],
            "cost": asdict(self.cost),
            "asked": list(self.asked),
        }


def draft(spec: ClusterSpec, request: GkeOptions, have: Observed) -> Draft:
    """Return the changes from the observed to the requested state.

    Raises ConflictError, NotFoundError or UsageError if it cannot be reached; exceeded limits are the draft's
    refusal.
    """
    shape, slices = spec.shape, have.slices(spec.shape)
    check_slicing(spec, request, have)
    check_alike(spec, slices)
    if len(slices) > spec.num_slices:
        raise ConflictError(
            f"cluster '{spec.name}' has {len(slices)} slices of {shape.name} (requested {spec.num_slices})",
            hint=f"--num-slices {len(slices)} keeps them; `xpk cluster resize {spec.name} --num-slices "
            f"{spec.num_slices}` removes some",
        )
    missing = missing_names(have, spec.name, shape, spec.num_slices)
    original, request = request, _with_identity(request, have)
    request = replace(
        request,
        default_pool_cpu_num_nodes=default_nodes(request.custom_cluster_arguments, request.default_pool_cpu_num_nodes),
    )
    sizing = _sizing(spec, request, have)
    version = choose_version(have.server, request)
    check_version(spec, version, have)
    body = request_bodies.cluster_body(spec, request, version, sizing)
    desired = request_bodies.changeable(request)
    if nap := request_bodies.autoprovisioning(shape, request, _chips_alike(spec, have)):
        desired["autoscaling"] = _with_others(nap, have.cluster)
        body["autoscaling"] |= nap
    networks = _data_networks(spec, request, have, sizing) if missing else []
    changes = _policy_changes(spec, have) + _network_changes(networks, spec.name, request, have)
    changes += cluster_changes(have, body, desired)
    after = [change.key for change in changes]
    pools = _assigned(missing, shape, request, have, version, networks)
    # A failure is described in full only once, by the change that recreates the resource.
    changes += pool_changes(have, spec.name, shape, pools, after=after)
    changes += _identity_changes(have, shape, original, missing, after)
    return _checked_draft(spec, request, have, changes, missing, networks, body)


def grown(spec: ClusterSpec, request: GkeOptions, have: Observed, changes: list[Change]) -> Draft:
    """Return a draft of `changes` that add slices like existing ones, with the limits of a create.

    Raises ConflictError if such slices are impossible.
    """
    missing = [change.subject for change in changes if change.kind == "create-pool"]
    networks = _data_networks(spec, request, have, _sizing(spec, request, have)) if missing else []
    return _checked_draft(spec, request, have, changes, missing, networks, {})


def _checked_draft(
    spec: ClusterSpec,
    request: GkeOptions,
    have: Observed,
    changes: list[Change],
    missing: Sequence[str],
    networks: Sequence[DataNetwork],
    body: Dict,
) -> Draft:
    """Return a draft with its limits, its cost, and its refusal if it exceeds them."""
    checked_limits = _limits(spec, request, have, missing, body)
    if networks:
        checked_limits += network_limits(networks, have.networks, _data_hosts(spec, have), have.project)
    specs = _specs_after(spec, request, have, changes)
    limited = next((candidate.max_slices for candidate in specs if candidate.shape == spec.shape), None)
    cost = cost_of(
        spec.shape, spec.num_slices, region=request.region, on_demand=request.capacity == "on-demand",
        file=request.prices, most_slices=limited and max(limited, spec.num_slices),
    )  # fmt: skip
    refusal = check_cost(cost, request.max_cost) or _too_little(checked_limits, new=bool(missing))
    option_texts = option_lines(request, body if have.cluster is None else {})
    return Draft(changes=changes, limits=checked_limits, cost=cost, specs=specs, refusal=refusal, asked=option_texts)


def choose_version(server: Mapping[str, Any], request: GkeOptions) -> str | None:
    """Return the version to request: the channel's default, or the newest one with the user's prefix.

    Raises UsageError for one that GKE does not offer.
    """
    channel = request.release_channel or ("REGULAR" if request.gke_version else "RAPID")
    configs = {config.get("channel"): config for config in server.get("channels", [])}
    if not request.gke_version:
        default = configs.get(channel, {}).get("default_version")
        return str(default) if default else None
    offered = {str(version) for config in configs.values() for version in config.get("valid_versions", [])}
    offered |= set(server.get("valid_master_versions", []))
    fitting = [version for version in offered if re.match(rf"{re.escape(request.gke_version)}([.-]|$)", version)]
    if not server or request.gke_version in ("latest", "-"):
        return request.gke_version
    if not fitting:
        newest = sorted(offered, key=version_numbers, reverse=True)
        raise UsageError(
            f"GKE does not offer version {request.gke_version} in {request.region}",
            hint=f"choose from {', '.join(newest[:6])}",
        )
    return max(fitting, key=version_numbers)


def summary_of(spec: ClusterSpec, request: GkeOptions) -> str:
    """Return a one-line summary of the request."""
    return (
        f"{cluster_summary(spec)}, {request.capacity or 'no capacity chosen: on-demand'}, in {request.zone} of "
        f"project {request.project}" + (f"; GKE adds slices up to {spec.max_slices}" if spec.max_slices else "")
    )


def _policy_changes(spec: ClusterSpec, have: Observed) -> list[Change]:
    policy = request_bodies.policy_name(spec.shape, super_slicing=spec.super_slicing)
    if policy is None or have.policy is not None:
        return []
    body = request_bodies.policy_body(policy, spec.shape, super_slicing=spec.super_slicing)
    return [Change("create-policy", policy, body)]


def _data_networks(spec: ClusterSpec, request: GkeOptions, have: Observed, sizing: Sizing) -> list[DataNetwork]:
    """Return the data networks of a type's slices. Raises ConflictError if they cannot be created."""
    region = region_of(have.location or request.region)
    networks = data_networks(spec.name, region, spec.shape, _data_hosts(spec, have))
    if networks and have.cluster and not have.cluster.get("network_config", {}).get("enable_multi_networking"):
        raise ConflictError(
            f"cluster '{spec.name}' has no multi-networking, which the data NICs of {spec.shape.family} need",
            hint="choose another name: it can only be enabled at creation",
        )
    if networks and sizing.nodes > limits.MULTI_NETWORK_NODES:
        raise ConflictError(
            f"{sizing.nodes:,} nodes: beyond {limits.MULTI_NETWORK_NODES:,} GKE has no multi-networking, which the "
            f"data NICs of {spec.shape.family} need",
            hint="use several clusters",
        )
    return networks


def _data_hosts(spec: ClusterSpec, have: Observed) -> int:
    """Return the number of hosts that share the data networks."""
    others = [shape for pool in have.pools.values() if (shape := shape_of_pool(pool)) and shape != spec.shape]
    return (spec.num_slices + sum(shape.family in DATA_NICS for shape in others)) * spec.shape.hosts


def _network_changes(networks: Sequence[DataNetwork], name: str, request: GkeOptions, have: Observed) -> list[Change]:
    """Return the changes that create missing data networks or parts of them."""
    text = description(name, have.location or request.region)
    return [
        Change("create-network", network.network, network.bodies(request.project, text), why=_lacking(network, have))
        for network in networks
        if not set(network.names) <= set(have.networks)
    ]


def _lacking(network: DataNetwork, have: Observed) -> str:
    """Return the missing parts of a data network, "" if all of it is missing."""
    missing = [name for name in network.names if name not in have.networks]
    return "" if network.network in missing else f"{' and '.join(missing)} missing"


def _with_identity(request: GkeOptions, have: Observed) -> GkeOptions:
    """Return a request with workload identity set: an existing cluster keeps its setting."""
    if request.workload_identity is not None:
        return request
    pool = (have.cluster or {}).get("workload_identity_config", {}).get("workload_pool")
    is_enabled = have.cluster is None or bool(pool)
    return replace(request, enable_workload_identity=is_enabled, disable_workload_identity=not is_enabled)


def _identity_changes(
    have: Observed, shape: SliceShape, request: GkeOptions, missing: Sequence[str], after: Sequence[str]
) -> list[Change]:
    """Return the changes that give existing slices the cluster's workload identity."""
    mode = {"mode": "GKE_METADATA"}
    return [
        Change("update-pool", name, {"workload_metadata_config": mode}, tuple(after), "workload identity")
        for name, pool in have.slices(shape).items()
        if request.workload_identity
        and name not in missing
        and not covers(pool.get("config", {}).get("workload_metadata_config"), mode)
    ]


def _assigned(
    missing: Sequence[str],
    shape: SliceShape,
    request: GkeOptions,
    have: Observed,
    version: str | None,
    networks: Sequence[DataNetwork],
) -> list[Dict]:
    """Return the missing node pools, distributed over the reservations with free machines."""
    paths = [reservation_path(reservation, request.project) for reservation in request.reservation]
    missing_paths = [path for path in paths if not have.guess and have.reservations.get(path) is None]
    if missing_paths:
        raise NotFoundError(
            f"reservation {missing_paths[0]} not found in {request.zone}",
            hint=f"`gcloud compute reservations list --project {request.project}` lists the existing ones",
        )
    rooms = [_room(have.reservations.get(path), shape) for path in paths]
    bodies, index, taken = [], 0, 0
    if have.cluster and not request.gke_version:
        version = None  # the default of the cluster's control plane
    for name in missing:
        while index < len(paths) - 1 and taken >= rooms[index]:
            index, taken = index + 1, 0
        reservation = paths[index] if paths else None
        bodies.append(request_bodies.pool_body(name, shape, request, reservation, version, networks))
        taken += 1
    return bodies


def _room(reservation: Mapping[str, Any] | None, shape: SliceShape) -> float:
    free = limits.free_hosts(reservation)
    return float("inf") if free is None else free // shape.hosts


def _sizing(spec: ClusterSpec, request: GkeOptions, have: Observed) -> Sizing:
    others = [pool for name, pool in have.pools.items() if shape_of_pool(pool) not in (None, spec.shape)]
    groups = [
        (request.default_pool_cpu_num_nodes, 110),
        (spec.quota_hosts, request_bodies.pods_per_node(spec.shape, request)),
    ]
    for pool in others:
        pods = int(pool.get("max_pods_constraint", {}).get("max_pods_per_node", 110))
        groups.append((int(pool.get("initial_node_count", 0)), pods))
    has_pod_range = any(
        "cluster-ipv4-cidr" in argument or "secondary-range" in argument
        for argument in request.custom_cluster_arguments
    )
    return limits.size_of(
        groups,
        given_pods=has_pod_range or have.cluster is not None,
        subnetwork=have.subnetwork,
        has_own_subnetwork=_names_subnetwork(request) or have.cluster is not None,
    )


def _names_subnetwork(request: GkeOptions) -> bool:
    return bool(request.subnetwork) or any("--subnetwork" in argument for argument in request.custom_cluster_arguments)


def _limits(spec: ClusterSpec, request: GkeOptions, have: Observed, missing: Sequence[str], body: Dict) -> list[Limit]:
    shape, hosts, sizing = spec.shape, len(missing) * spec.shape.hosts, _sizing(spec, request, have)
    if have.cluster:
        block = have.cluster.get("cluster_ipv4_cidr")
    else:
        block = body["ip_allocation_policy"].get("cluster_ipv4_cidr_block")
    assumed = not have.cluster and not (have.guess and _names_subnetwork(request))  # the version of a new cluster
    checked_limits = limits.range_limits(
        sizing, block, have.subnetwork, is_known=assumed or have.subnetwork is not None
    )
    pods = sizing.nodes * 4 + spec.num_hosts  # GKE's own pods on every node, and one of a workload
    longest = max(
        (len(pool_name) for pool_name in missing),
        default=len(names.node_pool_name(spec.name, max(0, spec.num_slices - 1))),
    )
    checked_limits += limits.size_limits(longest, shape, pods, spec.num_hosts, request)
    if request.capacity == "reservation":
        paths = [reservation_path(reservation, request.project) for reservation in request.reservation]
        free = [limits.free_hosts(have.reservations.get(path)) for path in paths]
        num_free = None if any(count is None for count in free) else sum(count for count in free if count)
        checked_limits.append(limits.reservation_limit(", ".join(paths), hosts, num_free))
    elif shape.kind != "cpu":
        checked_limits.append(limits.chips_limit(shape, len(missing) * shape.chips, request, have.region, have.quota))
    nodes = hosts + (request.default_pool_cpu_num_nodes if have.cluster is None else 0)
    network = (have.cluster or body).get("private_cluster_config", {})
    own_disks = any("disk" in argument for argument in (*request.custom_pool, *request.custom_cluster_arguments))
    checked_limits += limits.nodes_limits(
        nodes, shape, have.region, private=bool(network.get("enable_private_nodes")), own_disks=own_disks
    )
    if have.cluster is None and have.machine:
        vcpus = int(have.machine.get("guestCpus", 0)) * request.default_pool_cpu_num_nodes
        checked_limits.append(limits.default_pool_limit(vcpus, have.region))
    return checked_limits


def _too_little(checked_limits: Sequence[Limit], *, new: bool) -> CapacityError | None:
    """Return why the request cannot fit, None if it may."""
    short = [limit for limit in checked_limits if limit.firm and limit.fits is False]
    if not short or not new:
        return None
    more = f"; and {len(short) - 1} other limits" if len(short) > 1 else ""
    return CapacityError(
        f"the request does not fit: {short[0].line()}{more}", hint=short[0].advice or "`xpk docs scale`"
    )


def _specs_after(
    spec: ClusterSpec, request: GkeOptions, have: Observed, changes: Sequence[Change]
) -> list[ClusterSpec]:
    """Return all slices of the cluster after the plan, including those that GKE may add."""
    others = [other for other in specs_of_pools(spec.name, have.pools) if other.shape != spec.shape]
    new = {change.subject: change.body for change in changes if change.kind == "create-pool"}
    bought = {capacity_of(pool) for pool in (have.slices(spec.shape) | new).values()}
    requested_spec = replace(spec, capacities=tuple(sorted(bought)), max_slices=None)
    autoscaling, types = (have.cluster or {}).get("autoscaling"), dict(have.autoprovisioned)
    if nap := request_bodies.autoprovisioning(spec.shape, request, _chips_alike(spec, have)):
        autoscaling, types[spec.shape.name] = _with_others(nap, have.cluster), provisions_of(request)
    return with_limits(spec.name, [*others, requested_spec], autoscaling, types)


def _chips_alike(spec: ClusterSpec, have: Observed) -> int:
    """Return the chips of all slices with a type's accelerator: existing ones of other types, and requested ones."""
    others = [other for other in specs_of_pools(spec.name, have.pools) if other.shape != spec.shape]
    alike = [other for other in others if other.shape.accelerator == spec.shape.accelerator]
    return sum(slices.num_chips for slices in [*alike, spec])


def _with_others(nap: Dict, cluster: Mapping[str, Any] | None) -> Dict:
    """Return autoprovisioning's limits merged with the cluster's limits for other accelerators."""
    ours = {limit["resource_type"] for limit in nap["resource_limits"]}
    have = (cluster or {}).get("autoscaling", {}).get("resource_limits", [])
    others = [  # normalized: GKE omits zeros, and returns numbers as text
        {**limit, "minimum": int(limit.get("minimum", 0)), "maximum": int(limit.get("maximum", 0))}
        for limit in have
        if limit.get("resource_type") not in ours
    ]
    return {**nap, "resource_limits": [*nap["resource_limits"], *others]}
