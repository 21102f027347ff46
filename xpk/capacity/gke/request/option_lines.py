"""Requested options besides slices, as lines of the plan: the plan shows every requested option. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from xpk.capacity.gke.request.options import DEFAULT_SCOPES, DRIVERS, GkeOptions


def option_lines(request: GkeOptions, cluster: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the requested options, one line each. `cluster`: the body of a new cluster; empty for an existing one."""
    groups = {
        "control plane": [*_version(request, cluster), *_endpoints(request)],
        "nodes": list(_nodes(request)),
        "add-ons": [_driver(request, flag) for flag in request.drivers],
        "workload identity": _identity(request, cluster),
        "autoprovisioning": list(_autoprovisioning(request)),
        "workloads": list(_workloads(request)),
        "after a failure": list(_failure(request)),
        "custom cluster arguments": [shlex.join(request.custom_cluster_arguments)]
        if request.custom_cluster_arguments
        else [],
        "custom node pool arguments": [shlex.join(request.custom_pool)] if request.custom_pool else [],
    }
    return tuple(f"{title}: {', '.join(words)}" for title, words in groups.items() if words)


def _version(request: GkeOptions, cluster: Mapping[str, Any]) -> Iterator[str]:
    if cluster:
        yield f"release channel {str(cluster['release_channel']['channel']).lower()}"
        yield f"version {cluster.get('initial_cluster_version', 'of its default')}"
    if request.gke_version:
        yield "no automatic upgrades"


def _endpoints(request: GkeOptions) -> Iterator[str]:
    if request.enable_private_endpoint:
        yield "no public address"
    if request.private_endpoint_subnetwork:
        yield f"private address in subnetwork {request.private_endpoint_subnetwork}"
    if request.enable_master_global_access:
        yield "private address with global access"
    if request.authorized_networks:
        yield f"authorized networks {' '.join(request.authorized_networks)}"


def _nodes(request: GkeOptions) -> Iterator[str]:
    if request.is_private:
        yield "private (no public addresses)"
    if request.network:
        yield f"network {request.network}"
    if request.subnetwork:
        yield f"subnetwork {request.subnetwork}"
    if request.reservation:
        word = "reservation" if len(request.reservation) == 1 else "reservations"
        yield f"{word} {' '.join(request.reservation)}"
    if request.queued_provisioning:
        yield "queued provisioning"
    if request.super_slicing:
        yield f"cubes that form {'slices and parts of them' if request.sub_slicing else 'slices'} for workloads"
    elif request.sub_slicing:
        yield "slices shared by parts"
    if request.is_maintained_periodically:
        yield "periodic host maintenance"
    if request.scopes != DEFAULT_SCOPES:
        yield f"scopes {' '.join(request.scopes)}"
    if request.max_pods_per_node:
        yield f"at most {request.max_pods_per_node} pods each"


def _driver(request: GkeOptions, flag: str) -> str:
    legacy = flag == "--enable-lustre-csi-driver" and request.enable_legacy_lustre_port
    return DRIVERS[flag][1] + (" (legacy port)" if legacy else "")


def _identity(request: GkeOptions, cluster: Mapping[str, Any]) -> list[str]:
    if request.workload_identity:
        return [f"{request.project}.svc.id.goog"]
    return ["none (pods act as the nodes' service account)"] if cluster and request.workload_identity is False else []


def _autoprovisioning(request: GkeOptions) -> Iterator[str]:
    if request.enable_autoprovisioning:
        most = (
            "those of the slices"
            if request.autoprovisioning_max_chips is None
            else f"{request.autoprovisioning_max_chips:,}"
        )
        yield f"chips from {request.autoprovisioning_min_chips:,} to {most}"
        cpus, memory = request.autoprovisioning_max_cpu, request.autoprovisioning_max_memory
        yield f"at most {cpus:,} CPUs and {memory:,} GiB of memory"


def _workloads(request: GkeOptions) -> Iterator[str]:
    if request.output_root:
        yield f"output in {request.output_root}"
    if request.trainer_image:
        yield f"trainer image {request.trainer_image}"


def _failure(request: GkeOptions) -> Iterator[str]:
    if request.roll_back:
        yield "everything that this command created is removed"
    if request.ignore_nodepool_creation_errors:
        yield "slices that did not come up are skipped"
