"""The flags of `xpk cluster` that are for Google Cloud; what they mean is in xpk/capacity/gke/request.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from xpk.capacity.gke.flags import CLOUD_FLAGS
from xpk.cli.options import Command, parse_duration

_Options = list[Callable[[Any], Any]]


def _text(flag: str, metavar: str, help: str) -> Callable[[Any], Any]:
    return click.option(flag, metavar=metavar, help=f"gke: {help}")


def _switch(flag: str, help: str) -> Callable[[Any], Any]:
    return click.option(flag, is_flag=True, help=f"gke: {help}")


_PLACE: _Options = [
    _text("--project", "PROJECT", "the project; gcloud's configured one if left out."),
    _text("--zone", "ZONE", "where the nodes are; the control plane is in its whole region."),
]
_CARRYING: _Options = [
    _switch("--roll-back", "after a failure, remove what this command made."),
    _text("--at-once", "N", "how many steps go on at the same time; 100 by default."),
    _text("--timeout", "TIME", "how long one operation may take: 90s, 10m, 2h; 1h by default."),
]
_CAPACITY: _Options = [
    _switch("--on-demand", "capacity as there is."),
    _switch("--spot", "spot capacity."),
    _text("--reservation", "R,...", "reservations: names, or projects/P/reservations/R[/reservationBlocks/B...]."),
    _switch("--flex", "flex-start capacity, provisioned when it is free."),
    _switch("--sub-slicing", "v6e in a Cluster Director reservation: workloads may share a slice by parts."),
    _switch("--queued-provisioning", "with --flex: nodes come by ProvisioningRequests alone."),
]
_CONTROL: _Options = [
    _text("--gke-version", "VERSION", "the version, in the regular channel; without upgrades."),
    _text("--release-channel", "CHANNEL", "rapid (default), regular, stable or extended."),
    click.option(
        "--default-pool-cpu-machine-type",
        "--cluster-cpu-machine-type",
        metavar="TYPE",
        help="gke: the default pool's machines; e2-standard-16.",
    ),
    _text("--default-pool-cpu-num-nodes", "N", "how many of them; 6."),
    _text("--host-maintenance-interval", "WHEN", "when the hosts are maintained: AS_NEEDED (default) or PERIODIC."),
    _switch("--private", "nodes without public addresses."),
    _text("--authorized-networks", "CIDR...", "who reaches the control plane's address."),
    _switch("--enable-private-endpoint", "the control plane has no public address."),
    _text("--private-endpoint-subnetwork", "SUBNETWORK", "where its private address is."),
    _switch("--enable-master-global-access", "its private address is reached from every region."),
    _text("--region", "REGION", "the region, if it is to be checked against --zone."),
    _text("--network", "NETWORK", "the VPC network."),
    _text("--subnetwork", "SUBNETWORK", "the nodes' subnetwork."),
    _switch("--enable-workload-identity", "pods act as service accounts of their own; default for new clusters."),
    _switch("--disable-workload-identity", "pods act as the nodes' service account."),
    _text("--node-scopes", "SCOPE,...", "OAuth scopes of the nodes' service account; gke-default."),
]
_STORAGE: _Options = [
    _switch("--enable-gcsfuse-csi-driver", "mount buckets; needs workload identity, and enables it."),
    _switch("--enable-gcpfilestore-csi-driver", "mount Filestore instances."),
    _switch("--enable-parallelstore-csi-driver", "mount Parallelstore instances."),
    _switch("--enable-pd-csi-driver", "mount persistent disks."),
    _switch("--enable-lustre-csi-driver", "mount Managed Lustre instances."),
    _switch("--enable-legacy-lustre-port", "with it: Lustre's old port."),
]
_SIZE: _Options = [
    click.option("--num-nodes", type=click.IntRange(1), help="GPU and CPU types: how many hosts, one slice each."),
    _switch("--enable-autoprovisioning", "let GKE add node pools by itself."),
    _text("--autoprovisioning-min-chips", "N", "chips that stay."),
    _text("--autoprovisioning-max-chips", "N", "chips that there may be, and the quota; as many as asked for."),
    _text("--autoprovisioning-max-cpu", "N", "CPUs that there may be; 1000000."),
    _text("--autoprovisioning-max-memory", "GIB", "memory that there may be; 10000000."),
    _text("--max-pods-per-node", "N", "pods on a slice's node; 15 where a slice has several."),
    _text("--custom-cluster-arguments", "ARGS", "gcloud's arguments, or field.path=VALUE of the API."),
    _text("--custom-nodepool-arguments", "ARGS", "the same for the slices' node pools."),
    _text("--custom-tpu-nodepool-arguments", "ARGS", "the same."),
    _switch("--ignore-nodepool-creation-errors", "go on with the slices that come up."),
    _text("--max-cost", "DOLLARS", "refuse what costs more an hour, by list prices."),
    _text("--prices", "FILE", "a price table instead of the one that comes with xpk."),
    _text("--output-root", "PLACE", "where workloads write: gs://BUCKET/PREFIX."),
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
    return _take(command, [_switch("--enable-workload-identity", "pods act as service accounts."), *_STORAGE])


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
