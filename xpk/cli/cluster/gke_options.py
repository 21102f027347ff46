"""The flags of `xpk cluster` that are for Google Cloud; what they mean is in xpk/capacity/gke/request.py."""

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
    _text("--project", "PROJECT", "the Google Cloud project; gcloud's configured one if left out."),
    _text("--zone", "ZONE", "the zone of the nodes; the control plane is in its region."),
]
_CARRYING: _Options = [
    _switch("--roll-back", "remove what this command created if it fails."),
    _text("--at-once", "N", "run at most N steps at the same time. [default: 100]"),
    _text("--timeout", "TIME", "give up on an operation after 90s, 10m, 2h. [default: 1h]"),
]
_CAPACITY: _Options = [
    _switch("--on-demand", "on-demand capacity."),
    _switch("--spot", "spot capacity."),
    _text("--reservation", "R,...", "reserved capacity: names, or projects/P/reservations/R[/reservationBlocks/B...]."),
    _switch("--flex", "flex-start capacity, provisioned when available."),
    _switch("--sub-slicing", "let workloads share slices by parts: v6e in a Cluster Director reservation."),
    _switch("--queued-provisioning", "with --flex: provision nodes only when a workload asks for them."),
]
_CONTROL: _Options = [
    _text("--gke-version", "VERSION", "the GKE version, in the regular channel, without automatic upgrades."),
    _text("--release-channel", "CHANNEL", "the release channel: rapid, regular, stable or extended. [default: rapid]"),
    click.option(
        "--default-pool-cpu-machine-type",
        "--cluster-cpu-machine-type",
        metavar="TYPE",
        help="gke: the machine type of the default pool. [default: e2-standard-16]",
    ),
    _text("--default-pool-cpu-num-nodes", "N", "the nodes of the default pool. [default: 6]"),
    _text("--host-maintenance-interval", "WHEN", "maintain hosts AS_NEEDED or PERIODIC. [default: AS_NEEDED]"),
    _switch("--private", "give nodes no public addresses."),
    _text("--authorized-networks", "CIDR...", "the networks that reach the control plane's address."),
    _switch("--enable-private-endpoint", "give the control plane no public address."),
    _text("--private-endpoint-subnetwork", "SUBNETWORK", "the subnetwork of the control plane's private address."),
    _switch("--enable-master-global-access", "let every region reach the control plane's private address."),
    _text("--region", "REGION", "the region, checked against --zone."),
    _text("--network", "NETWORK", "the VPC network."),
    _text("--subnetwork", "SUBNETWORK", "the nodes' subnetwork."),
    _switch("--enable-workload-identity", "let pods act as their own service accounts; the default for new clusters."),
    _switch("--disable-workload-identity", "let pods act as the nodes' service account."),
    _text(
        "--node-scopes",
        "SCOPE,...",
        "the OAuth scopes of the nodes. [default: gke-default; wider without workload identity]",
    ),
]
_STORAGE: _Options = [
    _switch("--enable-gcsfuse-csi-driver", "let workloads mount buckets; enables workload identity."),
    _switch("--enable-gcpfilestore-csi-driver", "let workloads mount Filestore instances."),
    _switch("--enable-parallelstore-csi-driver", "let workloads mount Parallelstore instances."),
    _switch("--enable-pd-csi-driver", "let workloads mount persistent disks."),
    _switch("--enable-lustre-csi-driver", "let workloads mount Managed Lustre instances."),
    _switch("--enable-legacy-lustre-port", "use Lustre's old port, with --enable-lustre-csi-driver."),
]
_SIZE: _Options = [
    click.option(
        "--num-nodes", type=click.IntRange(1), help="The number of hosts, for GPU and CPU types; each is a slice."
    ),
    _switch("--enable-autoprovisioning", "let GKE add node pools when workloads need them."),
    _text("--autoprovisioning-min-chips", "N", "the minimum of chips to keep. [default: 0]"),
    _text(
        "--autoprovisioning-max-chips",
        "N",
        "the maximum of chips, and the queue's quota; those of the slices if left out.",
    ),
    _text("--autoprovisioning-max-cpu", "N", "the maximum of CPUs. [default: 1000000]"),
    _text("--autoprovisioning-max-memory", "GIB", "the maximum of memory. [default: 10000000]"),
    _text("--max-pods-per-node", "N", "the pods of a slice's node; 15 if a slice has several nodes."),
    _text("--custom-cluster-arguments", "ARGS", "arguments of gcloud for the cluster, or field.path=VALUE of the API."),
    _text("--custom-nodepool-arguments", "ARGS", "arguments of gcloud for the slices' node pools."),
    _text("--custom-tpu-nodepool-arguments", "ARGS", "same as --custom-nodepool-arguments."),
    _switch("--ignore-nodepool-creation-errors", "continue with the slices that come up."),
    _text("--max-cost", "DOLLARS", "refuse a plan that costs more an hour, by list prices."),
    _text("--prices", "FILE", "a price table to use instead of the built-in one."),
    _text("--output-root", "PLACE", "the place where workloads write: gs://BUCKET/PREFIX."),
]


def place_options(command: Command) -> Command:
    """Take where a cluster is."""
    return _take(command, _PLACE)


def carrying_options(command: Command) -> Command:
    """Take how a plan is carried out."""
    return _take(command, _CARRYING)


def create_options(command: Command) -> Command:
    """Take everything that a cluster of GKE can be asked for."""
    return _take(command, [*_PLACE, *_CAPACITY, *_CONTROL, *_STORAGE, *_SIZE, *_CARRYING])


def addon_options(command: Command) -> Command:
    """Take the add-ons that a cluster can get later too."""
    return _take(
        command, [_switch("--enable-workload-identity", "let pods act as their own service accounts."), *_STORAGE]
    )


def chosen_provider(provider: str | None, flags: dict[str, str], otherwise: str = "local") -> str:
    """Return the provider that was named; gke if a flag of Google Cloud is given; else the other one."""
    return provider or ("gke" if any(flag in CLOUD_FLAGS for flag in flags) else otherwise)


def in_seconds(flags: dict[str, Any]) -> dict[str, Any]:
    """Return a command's flags with `--timeout` in whole seconds. Raises UsageError if it is no time."""
    seconds = parse_duration(flags["timeout"], "--timeout")
    return flags if seconds is None else {**flags, "timeout": str(math.ceil(seconds))}


def _take(command: Command, options: _Options) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
