"""Requests to the GKE provider: flags, the variables that they set, and their validation."""

from __future__ import annotations

import configparser
import ipaddress
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xpk.capacity import user_config
from xpk.capacity.controllers import install
from xpk.capacity.gke.flags import CLOUD_FLAGS
from xpk.capacity.prepare import output_root_problems
from xpk.model import names
from xpk.model.capacities import ON_DEMAND, RESERVATION, reserved
from xpk.model.errors import UsageError

Capacity = Literal["on-demand", "spot", "reservation", "flex"]
DEFAULT_SCOPES = ("gke-default",)
FORMER_SCOPES = ("storage-full", "gke-default", "cloud-platform")  # pods without an identity of their own need them
MAINTENANCE_INTERVALS = ("AS_NEEDED", "PERIODIC")

SETTINGS: Mapping[str, str] = {
    **{flag: f"XPK_GKE_{flag[2:].upper().replace('-', '_')}" for flag in CLOUD_FLAGS},
    "--trainer-image": "XPK_TRAINER_IMAGE",
    **install.SETTINGS,
}
DRIVERS = {
    "--enable-gcsfuse-csi-driver": ("gcs_fuse_csi_driver_config", "GcsFuseCsiDriver"),
    "--enable-gcpfilestore-csi-driver": ("gcp_filestore_csi_driver_config", "GcpFilestoreCsiDriver"),
    "--enable-parallelstore-csi-driver": ("parallelstore_csi_driver_config", "ParallelstoreCsiDriver"),
    "--enable-pd-csi-driver": ("gce_persistent_disk_csi_driver_config", "GcePersistentDiskCsiDriver"),
    "--enable-lustre-csi-driver": ("lustre_csi_driver_config", "LustreCsiDriver"),
}
_AUTOPROVISIONING = tuple(f"--autoprovisioning-{each}" for each in ("min-chips", "max-chips", "max-cpu", "max-memory"))
_DIGITS = re.compile(r"[0-9]{1,15}")
_LONGEST = 100_000  # characters of arguments for gcloud
_PODS = (8, 256)  # of a node, as GKE takes them
_CHANNELS = ("RAPID", "REGULAR", "STABLE", "EXTENDED")
_POLL, _LONGEST_POLL = "XPK_GKE_POLL_SECONDS", 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of the GKE provider besides the slices. `custom_*` are gcloud's arguments."""

    project: str
    zone: str
    capacity: Capacity | None = None
    reservations: tuple[str, ...] = ()
    queued: bool = False
    sub_slicing: bool = False
    periodic_maintenance: bool = False  # of the slices' hosts
    version: str | None = None
    channel: str | None = None
    default_machine: str = "e2-standard-16"
    default_nodes: int = 6
    private: bool = False
    authorized_networks: tuple[str, ...] = ()
    private_endpoint: bool = False
    private_endpoint_subnetwork: str | None = None
    global_access: bool = False
    network: str | None = None
    subnetwork: str | None = None
    workload_identity: bool | None = None  # None: enable it on new clusters, leave others unchanged
    node_scopes: tuple[str, ...] | None = None  # OAuth scopes by gcloud's short names; None: see `scopes`
    drivers: tuple[str, ...] = ()
    legacy_lustre_port: bool = False
    autoprovisioning: bool = False
    min_chips: int = 0
    max_chips: int | None = None
    max_cpu: int = 1_000_000
    max_memory: int = 10_000_000
    custom_cluster: tuple[str, ...] = ()
    custom_pool: tuple[str, ...] = ()
    ignore_pool_errors: bool = False
    roll_back: bool = False
    at_once: int = 100
    max_cost: float | None = None  # US dollars per hour
    prices: Path | None = None
    max_pods_per_node: int | None = None
    timeout: int = 3600  # seconds, for one operation
    output_root: str | None = None
    trainer_image: str | None = None
    # How workloads run on the cluster, as for adapted ones.
    emulated: bool = False
    fenced: bool | None = None
    take_over: bool = False

    @property
    def region(self) -> str:
        """Return the zone's region: the control plane is regional, the nodes are in one zone."""
        return region_of(self.zone)

    @property
    def scopes(self) -> tuple[str, ...]:
        """Return the nodes' scopes: broad ones only if pods use the nodes' service account."""
        return self.node_scopes or (FORMER_SCOPES if self.workload_identity is False else DEFAULT_SCOPES)

    @property
    def parent(self) -> str:
        """Return the resource name of the cluster's location."""
        return f"projects/{self.project}/locations/{self.region}"


def region_of(location: str) -> str:
    """Return the region of a zone (us-east5-b), or of a region (us-east5)."""
    return location.rpartition("-")[0] if location.count("-") > 1 else location


class _Reader:
    """Reader of variables that collects all problems."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ, self.problems = environ, list[str]()

    def text(self, flag: str) -> str | None:
        return self._environ.get(SETTINGS[flag]) or None

    def flag(self, flag: str) -> bool:
        return self._environ.get(SETTINGS[flag], "").lower() not in ("", "0", "false", "no")

    def many(self, flag: str) -> tuple[str, ...]:
        return tuple(filter(None, re.split(r"[,\s" + os.pathsep + "]+", self.text(flag) or "")))

    def networks(self) -> tuple[str, ...]:
        return tuple(filter(None, re.split(r"[,\s]+", self.text("--authorized-networks") or "")))

    def words(self, *flags: str) -> tuple[str, ...]:
        try:
            if any(len(self.text(flag) or "") > _LONGEST for flag in flags):
                raise ValueError(f"more than {_LONGEST:,} characters")
            return tuple(word for flag in flags for word in shlex.split(self.text(flag) or ""))
        except ValueError as error:
            self.problems.append(f"{' '.join(flags)} cannot be parsed: {error}")
            return ()

    def number(self, flag: str, default: int, least: int = 0, most: int | None = None) -> int:
        text = self.text(flag)
        if text is None:
            return default
        if not _DIGITS.fullmatch(text) or int(text) < least or (most is not None and int(text) > most):
            to = "on" if most is None else f"to {most}"
            self.problems.append(f"{flag} is '{text}', not a whole number from {least} {to}")
            return default
        return int(text)


def read_request(environ: Mapping[str, str], home: Path | None = None, *, command: str = "create") -> Request:
    """Return the request of `xpk cluster COMMAND`'s flags and variables. Raises UsageError with all problems."""
    request, problems = parse_request(environ, home)
    if problems:
        raise UsageError("invalid options for GKE", problems=problems, hint=f"see `xpk cluster {command} --help`")
    return request


def parse_request(environ: Mapping[str, str], home: Path | None = None) -> tuple[Request, list[str]]:
    """Return the request of flags and variables, and all its problems, one line each."""
    reader, configured = _Reader(environ), _configured(environ, home)
    project = project_of(environ, home)
    zone = reader.text("--zone") or environ.get("CLOUDSDK_COMPUTE_ZONE") or configured.get("zone", "")
    problems = reader.problems
    if not project:
        problems.append("no project given: pass --project P, or set GOOGLE_CLOUD_PROJECT")
    if not names.ZONE.fullmatch(zone):
        problems.append(
            f"'{zone}' is not a zone"
            if zone
            else "no zone given: pass the zone of the nodes, such as --zone us-central1-a"
        )
    capacity, reservations = _capacity(reader)
    request = Request(
        project=project,
        zone=zone,
        capacity=capacity,
        reservations=reservations,
        queued=reader.flag("--queued-provisioning"),
        sub_slicing=reader.flag("--sub-slicing"),
        periodic_maintenance=(reader.text("--host-maintenance-interval") or "").upper() == "PERIODIC",
        version=reader.text("--gke-version"),
        channel=(reader.text("--release-channel") or "").upper() or None,
        default_machine=reader.text("--default-pool-cpu-machine-type") or "e2-standard-16",
        default_nodes=reader.number("--default-pool-cpu-num-nodes", 6, 1),
        private=reader.flag("--private") or reader.flag("--enable-private-endpoint"),
        authorized_networks=reader.networks(),
        private_endpoint=reader.flag("--enable-private-endpoint"),
        private_endpoint_subnetwork=reader.text("--private-endpoint-subnetwork"),
        global_access=reader.flag("--enable-master-global-access"),
        network=reader.text("--network"),
        subnetwork=reader.text("--subnetwork"),
        workload_identity=_workload_identity(reader),
        node_scopes=reader.many("--node-scopes") or None,
        drivers=tuple(flag for flag in DRIVERS if reader.flag(flag)),
        legacy_lustre_port=reader.flag("--enable-legacy-lustre-port"),
        **_autoprovisioning(reader),
        custom_cluster=reader.words("--custom-cluster-arguments"),
        custom_pool=reader.words("--custom-nodepool-arguments", "--custom-tpu-nodepool-arguments"),
        ignore_pool_errors=reader.flag("--ignore-nodepool-creation-errors"),
        roll_back=reader.flag("--roll-back"),
        at_once=reader.number("--at-once", 100, 2),
        max_cost=_money(reader, "--max-cost"),
        prices=Path(file) if (file := reader.text("--prices")) else None,
        max_pods_per_node=reader.number("--max-pods-per-node", 0, *_PODS) or None,
        timeout=reader.number("--timeout", 3600, 1),
        output_root=reader.text("--output-root"),
        trainer_image=reader.text("--trainer-image"),
    )
    return request, [*problems, *_problems(reader, request), *install.source_problems(environ)]


def project_of(environ: Mapping[str, str], home: Path | None = None) -> str:
    """Return the project from flags, variables, preferences or gcloud's configuration, "" if none has one."""
    given = environ.get(SETTINGS["--project"]) or environ.get("GOOGLE_CLOUD_PROJECT")
    return given or _configured(environ, home).get("project", "")


def read_poll_seconds(environ: Mapping[str, str]) -> float:
    """Return the polling interval in seconds. Raises UsageError."""
    text = environ.get(_POLL) or "5"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_POLL:
        raise UsageError(
            f"{_POLL} is '{text}', not a number of seconds up to {_LONGEST_POLL:.0f}", hint=f"unset {_POLL}"
        )
    return seconds


def reservation_path(reservation: str, project: str) -> str:
    """Return a reservation with its project: `projects/P/reservations/R[/reservationBlocks/...]`."""
    return reservation if reservation.startswith("projects/") else f"projects/{project}/reservations/{reservation}"


def provisions_of(request: Request) -> str:
    """Return the requested capacity in the form that workloads use."""
    if request.reservations:
        path = reservation_path(request.reservations[0], request.project)
        return reserved(path.removeprefix(f"projects/{request.project}/reservations/"))
    return request.capacity or ON_DEMAND


def _autoprovisioning(reader: _Reader) -> dict[str, Any]:
    return {
        "autoprovisioning": reader.flag("--enable-autoprovisioning"),
        "min_chips": reader.number("--autoprovisioning-min-chips", 0),
        "max_chips": reader.number("--autoprovisioning-max-chips", 0, 1) or None,
        "max_cpu": reader.number("--autoprovisioning-max-cpu", 1_000_000, 1),
        "max_memory": reader.number("--autoprovisioning-max-memory", 10_000_000, 1),
    }


def _workload_identity(reader: _Reader) -> bool | None:
    """Return whether pods use service accounts of their own, None if not specified."""
    needs = [each for each in ("--enable-workload-identity", "--enable-gcsfuse-csi-driver") if reader.flag(each)]
    if not reader.flag("--disable-workload-identity"):
        return True if needs else None
    reader.problems += [f"{each} and --disable-workload-identity exclude each other: choose one" for each in needs]
    return False


def _capacity(reader: _Reader) -> tuple[Capacity | None, tuple[str, ...]]:
    reservations = reader.many("--reservation")
    kinds: dict[Capacity, bool] = {
        "on-demand": reader.flag("--on-demand"),
        "spot": reader.flag("--spot"),
        "reservation": bool(reservations),
        "flex": reader.flag("--flex"),
    }
    asked = [kind for kind, given in kinds.items() if given]
    if len(asked) > 1:
        reader.problems.append(f"{' and '.join(f'--{kind}' for kind in asked)} exclude each other: choose one")
    for each in reservations:
        if not RESERVATION.fullmatch(each):
            reader.problems.append(
                f"reservation '{each}' is neither a name nor projects/P/reservations/R[/reservationBlocks/B"
                "[/reservationSubBlocks/S]]" + ("; names are lower-case" if each != each.lower() else "")
            )
    return (asked[0] if asked else None), reservations


def _problems(reader: _Reader, request: Request) -> list[str]:
    found = output_root_problems(request.output_root)
    region = reader.text("--region")
    if region and request.zone and region != request.region:
        found.append(f"zone {request.zone} is not in region {region}")
    if request.channel and request.channel not in _CHANNELS:
        found.append(f"--release-channel {request.channel.lower()}: choose from {', '.join(_CHANNELS).lower()}")
    interval = reader.text("--host-maintenance-interval") or "AS_NEEDED"
    if interval.upper() not in MAINTENANCE_INTERVALS:
        found.append(f"--host-maintenance-interval {interval}: choose from {', '.join(MAINTENANCE_INTERVALS)}")
    found += _unused(reader, request)
    if request.roll_back and request.ignore_pool_errors:
        found.append("--roll-back and --ignore-nodepool-creation-errors exclude each other: choose one")
    if request.max_chips is not None and request.max_chips < request.min_chips:
        found.append("--autoprovisioning-max-chips is less than --autoprovisioning-min-chips")
    for network in request.authorized_networks:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            found.append(f"--authorized-networks: '{network}' is not a range such as 10.0.0.0/8")
    if request.prices and not request.prices.is_file():
        found.append(f"--prices: file {request.prices} not found")
    return found


def _unused(reader: _Reader, request: Request) -> list[str]:
    """Return flags without effect, because another one is missing."""
    needs = {
        "--sub-slicing": (request.capacity == "reservation", "--reservation of Cluster Director"),
        "--queued-provisioning": (request.capacity == "flex", "--flex"),
        "--enable-legacy-lustre-port": (
            "--enable-lustre-csi-driver" in request.drivers, "--enable-lustre-csi-driver",
        ),
        "--private-endpoint-subnetwork": (request.private, "--private"),
        "--enable-master-global-access": (request.private, "--private"),
        **dict.fromkeys(_AUTOPROVISIONING, (request.autoprovisioning, "--enable-autoprovisioning")),
    }  # fmt: skip
    return [f"{flag} requires {other}" for flag, (there, other) in needs.items() if reader.flag(flag) and not there]


def _money(reader: _Reader, flag: str) -> float | None:
    text = reader.text(flag)
    try:
        value = None if text is None else float(text)
    except ValueError:
        value = -1.0
    if value is not None and not 0 <= value < float("inf"):
        reader.problems.append(f"{flag} is '{text}', not US dollars per hour")
        return None
    return value


def _configured(environ: Mapping[str, str], home: Path | None) -> dict[str, str]:
    """Return the project and zone from the preferences, else from gcloud."""
    return _gcloud_settings(environ, home) | user_config.load(environ, home)


def _gcloud_settings(environ: Mapping[str, str], home: Path | None) -> dict[str, str]:
    """Return the project and zone of gcloud's active configuration, read from its file without running gcloud."""
    folder = Path(environ.get("CLOUDSDK_CONFIG") or (home or Path.home()) / ".config" / "gcloud")
    parser = configparser.ConfigParser()
    try:
        active = (folder / "active_config").read_text(encoding="utf-8").strip()
        parser.read(folder / "configurations" / f"config_{active}", encoding="utf-8")
    except (OSError, configparser.Error):
        return {}
    places = {"project": ("core", "project"), "zone": ("compute", "zone")}
    return {key: parser.get(*place) for key, place in places.items() if parser.has_option(*place)}
