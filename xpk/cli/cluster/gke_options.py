"""Flags of `xpk cluster` for Google Cloud; xpk/capacity/gke/request.py interprets them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from xpk.capacity.gke.flags import CLOUD_FLAGS
from xpk.cli.durations import parse_duration
from xpk.cli.options import Command

_Options = list[Callable[[Any], Any]]


def _text(flag: str, metavar: str, help: str) -> Callable[[Any], Any]:
    return click.option(flag, metavar=metavar, help=f"gke: {help}")


def _switch(flag: str, help: str) -> Callable[[Any], Any]:
    return click.option(flag, is_flag=True, help=f"gke: {help}")


_PLACE: _Options = [
    _text("--project", "PROJECT", "Google Cloud project. [default: gcloud's configuration]"),
    _text("--zone", "ZONE", "zone of the nodes; the control plane is in its region."),
]
_CARRYING: _Options = [
    _switch("--roll-back", "delete what this command created if it fails."),
    _text("--at-once", "N", "maximum number of concurrent steps. [default: 100]"),
    _text("--timeout", "TIME", "maximum duration of an operation, such as 90s, 10m or 2h. [default: 1h]"),
]
_CAPACITY: _Options = [
    _switch("--on-demand", "use on-demand capacity."),
    _switch("--spot", "use spot capacity."),
    _text(
        "--reservation",
        "R,...",
        "use capacity of these reservations: names, or projects/P/reservations/R[/reservationBlocks/B...].",
    ),
    _switch("--flex", "use flex-start capacity, provisioned when available."),
    _switch("--sub-slicing", "let workloads use parts of a slice; requires v6e in a Cluster Director reservation."),
    _switch("--queued-provisioning", "provision nodes only when a workload needs them; requires --flex."),
]
_CONTROL: _Options = [
    _text("--gke-version", "VERSION", "GKE version; uses the regular channel without automatic upgrades."),
    _text("--release-channel", "CHANNEL", "release channel: rapid, regular, stable or extended. [default: rapid]"),
    click.option(
        "--default-pool-cpu-machine-type",
        "--cluster-cpu-machine-type",
        metavar="TYPE",
        help="gke: machine type of the default pool. [default: e2-standard-16]",
    ),
    _text("--default-pool-cpu-num-nodes", "N", "number of nodes in the default pool. [default: 6]"),
    _text("--host-maintenance-interval", "WHEN", "host maintenance: AS_NEEDED or PERIODIC. [default: AS_NEEDED]"),
    _switch("--private", "create nodes without public addresses."),
    _text("--authorized-networks", "CIDR...", "networks that may reach the control plane's address."),
    _switch("--enable-private-endpoint", "create the control plane without a public address."),
    _text("--private-endpoint-subnetwork", "SUBNETWORK", "subnetwork of the control plane's private address."),
    _switch("--enable-master-global-access", "make the control plane's private address reachable from every region."),
    _text("--region", "REGION", "region, checked against --zone."),
    _text("--network", "NETWORK", "VPC network."),
    _text("--subnetwork", "SUBNETWORK", "subnetwork of the nodes."),
    _switch("--enable-workload-identity", "let pods use their own service accounts. [default in new clusters]"),
    _switch("--disable-workload-identity", "let pods use the service account of the nodes."),
    _text(
        "--node-scopes",
        "SCOPE,...",
        "OAuth scopes of the nodes. [default: gke-default; wider without workload identity]",
    ),
]
_STORAGE: _Options = [
    _switch("--enable-gcsfuse-csi-driver", "let workloads mount buckets; enables workload identity."),
    _switch("--enable-gcpfilestore-csi-driver", "let workloads mount Filestore instances."),
    _switch("--enable-parallelstore-csi-driver", "let workloads mount Parallelstore instances."),
    _switch("--enable-pd-csi-driver", "let workloads mount persistent disks."),
    _switch("--enable-lustre-csi-driver", "let workloads mount Managed Lustre instances."),
    _switch("--enable-legacy-lustre-port", "use Lustre's legacy port; requires --enable-lustre-csi-driver."),
]
_SIZE: _Options = [
    click.option(
        "--num-nodes", type=click.IntRange(1), help="Number of hosts, for GPU and CPU types; each is a slice."
    ),
    _switch("--enable-autoprovisioning", "let GKE add node pools when workloads need them."),
    _text("--autoprovisioning-min-chips", "N", "minimum number of autoprovisioned chips. [default: 0]"),
    _text(
        "--autoprovisioning-max-chips",
        "N",
        "maximum number of chips for autoprovisioning, and the queue's quota. [default: chips of the slices]",
    ),
    _text("--autoprovisioning-max-cpu", "N", "maximum number of CPUs for autoprovisioning. [default: 1000000]"),
    _text("--autoprovisioning-max-memory", "GIB", "maximum memory for autoprovisioning in GiB. [default: 10000000]"),
    _text("--max-pods-per-node", "N", "maximum number of pods on a node. [default: 15 if a slice has several nodes]"),
    _text("--custom-cluster-arguments", "ARGS", "gcloud arguments for the cluster, or field.path=VALUE of the API."),
    _text("--custom-nodepool-arguments", "ARGS", "gcloud arguments for the node pools of the slices."),
    _text("--custom-tpu-nodepool-arguments", "ARGS", "same as --custom-nodepool-arguments."),
    _switch("--ignore-nodepool-creation-errors", "continue with the slices that were created."),
    _text("--max-cost", "DOLLARS", "refuse a plan that costs more per hour, by list prices."),
    _text("--prices", "FILE", "price table to use instead of the built-in one."),
    _text("--output-root", "PLACE", "output root of workloads: gs://BUCKET/PREFIX."),
]


def place_options(command: Command) -> Command:
    """Add the options of a cluster's location."""
    return _take(command, _PLACE)


def carrying_options(command: Command) -> Command:
    """Add the options of a plan's execution."""
    return _take(command, _CARRYING)


def create_options(command: Command) -> Command:
    """Add all options of a new GKE cluster."""
    return _take(command, [*_PLACE, *_CAPACITY, *_CONTROL, *_STORAGE, *_SIZE, *_CARRYING])


def addon_options(command: Command) -> Command:
    """Add the options of add-ons that an existing cluster can get."""
    return _take(
        command, [_switch("--enable-workload-identity", "let pods use their own service accounts."), *_STORAGE]
    )


def chosen_provider(provider: str | None, flags: dict[str, str], otherwise: str = "local") -> str:
    """Return the given provider; gke if a flag of Google Cloud is given; else `otherwise`."""
    return provider or ("gke" if any(flag in CLOUD_FLAGS for flag in flags) else otherwise)


def in_seconds(flags: dict[str, Any]) -> dict[str, Any]:
    """Return a command's flags with `--timeout` in whole seconds. Raises UsageError for an invalid duration."""
    seconds = parse_duration(flags["timeout"], "--timeout")
    return flags if seconds is None else {**flags, "timeout": str(math.ceil(seconds))}


def _take(command: Command, options: _Options) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
