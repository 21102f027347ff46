"""Checks of the options of the GKE provider that need no cloud access."""

from __future__ import annotations

import ipaddress
from dataclasses import fields

from xpk.capacity.cluster_setup import output_root_problems
from xpk.capacity.controllers import install
from xpk.capacity.gke.request.options import GkeOptions
from xpk.capacity.options import limit_problems
from xpk.model import names
from xpk.model.capacities import RESERVATION
from xpk.model.errors import UsageError

MAINTENANCE_INTERVALS = ("AS_NEEDED", "PERIODIC")
_AUTOPROVISIONING = tuple(
    f"--autoprovisioning-{suffix}" for suffix in ("min-chips", "max-chips", "max-cpu", "max-memory")
)
_CHANNELS = ("RAPID", "REGULAR", "STABLE", "EXTENDED")


def checked(options: GkeOptions, *, command: str) -> GkeOptions:
    """Return the options of `xpk cluster COMMAND`. Raises UsageError with all their problems."""
    if problems := option_problems(options):
        raise UsageError("invalid options for GKE", problems=problems, hint=f"see `xpk cluster {command} --help`")
    return options


def option_problems(options: GkeOptions) -> list[str]:
    """Return the problems of options, one line each."""
    return [
        *_place_problems(options),
        *limit_problems(options),
        *_capacity_problems(options),
        *output_root_problems(options.output_root),
        *_choice_problems(options),
        *_unused(options),
        *_contradictions(options),
        *_network_problems(options),
        *([f"--prices: file {options.prices} not found"] if options.prices and not options.prices.is_file() else []),
        *install.source_problems(options),
    ]


def _place_problems(options: GkeOptions) -> list[str]:
    problems = [] if options.project else ["no project given: pass --project P, or set GOOGLE_CLOUD_PROJECT"]
    if not options.zone:
        problems.append("no zone given: pass the zone of the nodes, such as --zone us-central1-a")
    elif not names.ZONE.fullmatch(options.zone):
        problems.append(f"invalid zone '{options.zone}': expected a zone such as us-central1-a")
    region = options.stated_region
    if region and options.zone and region != options.region:
        problems.append(f"zone {options.zone} is not in region {region}")
    return problems


def _capacity_problems(options: GkeOptions) -> list[str]:
    kinds, problems = options.capacities, []
    if len(kinds) > 1:
        problems.append(f"{' and '.join(f'--{kind}' for kind in kinds)} exclude each other: choose one")
    for reservation in options.reservation:
        if not RESERVATION.fullmatch(reservation):
            problems.append(
                f"reservation '{reservation}' is neither a name nor projects/P/reservations/R[/reservationBlocks/B"
                "[/reservationSubBlocks/S]]" + ("; names are lower-case" if reservation != reservation.lower() else "")
            )
    return problems


def _choice_problems(options: GkeOptions) -> list[str]:
    channel, interval, problems = options.release_channel, options.host_maintenance_interval, []
    if channel and channel not in _CHANNELS:
        problems.append(f"--release-channel {channel.lower()}: choose from {', '.join(_CHANNELS).lower()}")
    if interval not in MAINTENANCE_INTERVALS:
        problems.append(f"--host-maintenance-interval {interval}: choose from {', '.join(MAINTENANCE_INTERVALS)}")
    return problems


def _unused(options: GkeOptions) -> list[str]:
    """Return flags without effect, because another one is missing."""
    needs = {
        "--sub-slicing": (options.capacity == "reservation", "--reservation of Cluster Director"),
        "--super-slicing": (options.capacity == "reservation", "--reservation in All Capacity mode"),
        "--queued-provisioning": (options.capacity == "flex", "--flex"),
        "--enable-legacy-lustre-port": (options.enable_lustre_csi_driver, "--enable-lustre-csi-driver"),
        "--private-endpoint-subnetwork": (options.is_private, "--private"),
        "--enable-master-global-access": (options.is_private, "--private"),
        **dict.fromkeys(_AUTOPROVISIONING, (options.enable_autoprovisioning, "--enable-autoprovisioning")),
    }
    defaults = {field.name: field.default for field in fields(options)}
    changed = {flag: flag[2:].replace("-", "_") for flag in needs}
    return [
        f"{flag} requires {other}"
        for flag, (is_present, other) in needs.items()
        if not is_present and getattr(options, changed[flag]) != defaults[changed[flag]]
    ]


def _contradictions(options: GkeOptions) -> list[str]:
    problems = []
    if options.disable_workload_identity:
        both = {
            "--enable-workload-identity": options.enable_workload_identity,
            "--enable-gcsfuse-csi-driver": options.enable_gcsfuse_csi_driver,
        }
        problems += [
            f"{flag} and --disable-workload-identity exclude each other: choose one"
            for flag, is_given in both.items()
            if is_given
        ]
    channel = options.release_channel or ("REGULAR" if options.gke_version else "RAPID")
    if options.super_slicing and channel != "RAPID":
        problems.append(f"--super-slicing requires --release-channel rapid, got {channel.lower()}")
    if options.roll_back and options.ignore_nodepool_creation_errors:
        problems.append("--roll-back and --ignore-nodepool-creation-errors exclude each other: choose one")
    max_chips = options.autoprovisioning_max_chips
    if max_chips is not None and max_chips < options.autoprovisioning_min_chips:
        problems.append("--autoprovisioning-max-chips is less than --autoprovisioning-min-chips")
    return problems


def _network_problems(options: GkeOptions) -> list[str]:
    problems = []
    for network in options.authorized_networks:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            problems.append(f"--authorized-networks: invalid range '{network}': expected a range such as 10.0.0.0/8")
    return problems
