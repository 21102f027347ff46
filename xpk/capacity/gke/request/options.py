"""Options of the GKE provider. Field names follow the flags; properties are what several flags mean together."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from xpk.capacity.options import (
    ADAPT,
    CREATE,
    FIND,
    RESIZE,
    ControllerOptions,
    parse_path,
    parse_text,
    parse_whole,
    split_list,
)
from xpk.model.capacities import ON_DEMAND, reserved
from xpk.model.errors import UsageError
from xpk.model.options import option

Capacity = Literal["on-demand", "spot", "reservation", "flex"]
DEFAULT_SCOPES = ("gke-default",)
FORMER_SCOPES = ("storage-full", "gke-default", "cloud-platform")  # pods without an identity of their own need them
DRIVERS = {
    "--enable-gcsfuse-csi-driver": ("gcs_fuse_csi_driver_config", "GcsFuseCsiDriver"),
    "--enable-gcpfilestore-csi-driver": ("gcp_filestore_csi_driver_config", "GcpFilestoreCsiDriver"),
    "--enable-parallelstore-csi-driver": ("parallelstore_csi_driver_config", "ParallelstoreCsiDriver"),
    "--enable-pd-csi-driver": ("gce_persistent_disk_csi_driver_config", "GcePersistentDiskCsiDriver"),
    "--enable-lustre-csi-driver": ("lustre_csi_driver_config", "LustreCsiDriver"),
}
_LONGEST = 100_000  # characters of arguments for gcloud
_PODS = (8, 256)  # of a node, as GKE takes them
_ALL, _ADD_ON, _CARRIED = (CREATE, RESIZE, ADAPT, FIND), (CREATE, ADAPT), (CREATE, RESIZE)


def _upper(text: str, name: str) -> str:
    return text.upper()


def _words(text: str, name: str) -> tuple[str, ...]:
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"more than {_LONGEST:,} characters")
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{name} cannot be parsed: {error}", hint="quote them as in a shell") from error


def _dollars(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"{name} must be a number of US dollars per hour, got '{text}'", hint=f"{name} 100")
    return value


def _option(
    default: Any, metavar: str, help: str, parse: Callable[[str, str], Any] | None, *flags: str, **more: Any
) -> Any:
    more = {"metavar": metavar, "prefix": "XPK_GKE_", "parse": parse, **more}
    return option(default, *flags, help=f"gke: {help}", **more)


def _text(metavar: str, help: str, default: str | None = None, *flags: str, **more: Any) -> Any:
    return _option(default, metavar, help, parse_text, *flags, **more)


def _switch(help: str, **more: Any) -> Any:
    return option(False, help=f"gke: {help}", prefix="XPK_GKE_", **more)


def _number(default: int | None, metavar: str, help: str, low: int = 0, high: int | None = None) -> Any:
    return _option(default, metavar, help, parse_whole((low, high)), limits=(low, high))


@dataclass(frozen=True, slots=True, kw_only=True)
class GkeOptions(ControllerOptions):
    """Options of the GKE provider besides the slices."""

    provider: ClassVar[str] = "gke"

    # Place. The preferences and gcloud's configuration complete it for clusters that are not known on this machine.
    project: str = _text(
        "PROJECT",
        "Google Cloud project. [default: gcloud's configuration]",
        "",
        variables=("GOOGLE_CLOUD_PROJECT",),
        commands=_ALL,
    )
    zone: str = _text(
        "ZONE",
        "zone of the nodes; the control plane is in its region.",
        "",
        variables=("CLOUDSDK_COMPUTE_ZONE",),
        commands=_ALL,
    )
    tpu_type: str | None = _text(
        "TYPE",
        "accelerator type of the slices to resize, in a cluster of several.",
        None,
        "--tpu-type",
        "--device-type",
        commands=(RESIZE,),
    )

    # Capacity
    on_demand: bool = _switch("use on-demand capacity.")
    spot: bool = _switch("use spot capacity.")
    reservation: tuple[str, ...] = _option(
        (),
        "R,...",
        "use capacity of these reservations: names, or projects/P/reservations/R[/reservationBlocks/B...].",
        split_list,
    )
    flex: bool = _switch("use flex-start capacity, provisioned when available.")
    sub_slicing: bool = _switch("let workloads use parts of a slice; requires v6e in a Cluster Director reservation.")
    super_slicing: bool = _switch(
        "form the slices of workloads from cubes; requires tpu7x-128 in an All Capacity mode reservation."
    )
    queued_provisioning: bool = _switch("provision nodes only when a workload needs them; requires --flex.")

    # Control plane and nodes
    gke_version: str | None = _text("VERSION", "GKE version; uses the regular channel without automatic upgrades.")
    release_channel: str | None = _option(
        None, "CHANNEL", "release channel: rapid, regular, stable or extended. [default: rapid]", _upper
    )
    default_pool_cpu_machine_type: str = _text(
        "TYPE",
        "machine type of the default pool. [default: e2-standard-16]",
        "e2-standard-16",
        "--default-pool-cpu-machine-type",
        "--cluster-cpu-machine-type",
    )
    default_pool_cpu_num_nodes: int = _number(6, "N", "number of nodes in the default pool. [default: 6]", 1)
    host_maintenance_interval: str = _option(
        "AS_NEEDED", "WHEN", "host maintenance: AS_NEEDED or PERIODIC. [default: AS_NEEDED]", _upper
    )
    private: bool = _switch("create nodes without public addresses.")
    authorized_networks: tuple[str, ...] = _option(
        (), "CIDR...", "networks that may reach the control plane's address.", split_list
    )
    enable_private_endpoint: bool = _switch("create the control plane without a public address.")
    private_endpoint_subnetwork: str | None = _text("SUBNETWORK", "subnetwork of the control plane's private address.")
    enable_master_global_access: bool = _switch("make the control plane's private address reachable from every region.")
    stated_region: str | None = _text("REGION", "region, checked against --zone.", None, "--region")
    network: str | None = _text("NETWORK", "VPC network.")
    subnetwork: str | None = _text("SUBNETWORK", "subnetwork of the nodes.")
    enable_workload_identity: bool = _switch(
        "let pods use their own service accounts. [default in new clusters]", commands=_ADD_ON
    )
    disable_workload_identity: bool = _switch("let pods use the service account of the nodes.")
    node_scopes: tuple[str, ...] = _option(
        (),
        "SCOPE,...",
        "OAuth scopes of the nodes. [default: gke-default; wider without workload identity]",
        split_list,
    )

    # Storage drivers
    enable_gcsfuse_csi_driver: bool = _switch(
        "let workloads mount buckets; enables workload identity.", commands=_ADD_ON
    )
    enable_gcpfilestore_csi_driver: bool = _switch("let workloads mount Filestore instances.", commands=_ADD_ON)
    enable_parallelstore_csi_driver: bool = _switch("let workloads mount Parallelstore instances.", commands=_ADD_ON)
    enable_pd_csi_driver: bool = _switch("let workloads mount persistent disks.", commands=_ADD_ON)
    enable_lustre_csi_driver: bool = _switch("let workloads mount Managed Lustre instances.", commands=_ADD_ON)
    enable_legacy_lustre_port: bool = _switch(
        "use Lustre's legacy port; requires --enable-lustre-csi-driver.", commands=_ADD_ON
    )

    # Limits
    enable_autoprovisioning: bool = _switch("let GKE add node pools when workloads need them.")
    autoprovisioning_min_chips: int = _number(0, "N", "minimum number of autoprovisioned chips. [default: 0]")
    autoprovisioning_max_chips: int | None = _number(
        None,
        "N",
        "maximum number of chips for autoprovisioning, and the queue's quota. [default: chips of the slices]",
        1,
    )
    autoprovisioning_max_cpu: int = _number(
        1_000_000, "N", "maximum number of CPUs for autoprovisioning. [default: 1000000]", 1
    )
    autoprovisioning_max_memory: int = _number(
        10_000_000, "GIB", "maximum memory for autoprovisioning in GiB. [default: 10000000]", 1
    )
    max_pods_per_node: int | None = _number(
        None, "N", "maximum number of pods on a node. [default: 15 if a slice has several nodes]", *_PODS
    )
    custom_cluster_arguments: tuple[str, ...] = _option(
        (), "ARGS", "gcloud arguments for the cluster, or field.path=VALUE of the API.", _words
    )
    custom_nodepool_arguments: tuple[str, ...] = _option(
        (), "ARGS", "gcloud arguments for the node pools of the slices.", _words
    )
    custom_tpu_nodepool_arguments: tuple[str, ...] = _option((), "ARGS", "same as --custom-nodepool-arguments.", _words)
    ignore_nodepool_creation_errors: bool = _switch("continue with the slices that were created.")
    max_cost: float | None = _option(
        None, "DOLLARS", "refuse a plan that costs more per hour, by list prices.", _dollars, commands=_CARRIED
    )
    prices: Path | None = _option(  # noqa: RUF009  # makes a field
        None, "FILE", "price table to use instead of the built-in one.", parse_path, commands=_CARRIED
    )
    output_root: str | None = _text("PLACE", "output root of workloads: gs://BUCKET/PREFIX.", commands=_ADD_ON)
    trainer_image: str | None = _text("IMAGE", "image of the bundled trainer.", prefix="XPK_", commands=_ADD_ON)
    gpudirect_manifests: str | None = _text(
        "SOURCE",
        "folder or https URL of the manifests of GPUDirect. [default: Google's repository]",
        prefix="XPK_",
        commands=(CREATE, RESIZE, ADAPT),
    )

    # Execution
    roll_back: bool = _switch("delete what this command created if it fails.", commands=_CARRIED)
    at_once: int = _option(
        256,
        "N",
        "maximum number of concurrent steps. [default: 256]",
        parse_whole((2, None)),
        limits=(2, None),
        commands=_CARRIED,
    )
    timeout_seconds: float = _option(
        3600.0,
        "TIME",
        "maximum duration of an operation, such as 90s, 10m or 2h. [default: 1h]",
        None,
        "--timeout",
        is_time=True,
        limits=(1, None),
        commands=_CARRIED,
    )

    # How workloads run on the cluster, as for adapted ones.
    emulated: bool = False
    fenced: bool | None = None
    take_over: bool = False

    @property
    def may_be_empty(self) -> bool:
        """Return whether a new cluster may have no slices, because autoprovisioning adds them."""
        return self.enable_autoprovisioning

    @property
    def region(self) -> str:
        """Return the zone's region: the control plane is regional, the nodes are in one zone."""
        return region_of(self.zone)

    @property
    def parent(self) -> str:
        """Return the resource name of the cluster's location."""
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def capacities(self) -> list[Capacity]:
        """Return the requested kinds of capacity; more than one is a mistake."""
        kinds: dict[Capacity, bool] = {
            "on-demand": self.on_demand,
            "spot": self.spot,
            "reservation": bool(self.reservation),
            "flex": self.flex,
        }
        return [kind for kind, is_requested in kinds.items() if is_requested]

    @property
    def capacity(self) -> Capacity | None:
        """Return the requested kind of capacity."""
        return next(iter(self.capacities), None)

    @property
    def is_private(self) -> bool:
        """Return whether nodes have no public addresses."""
        return self.private or self.enable_private_endpoint

    @property
    def is_maintained_periodically(self) -> bool:
        """Return whether the slices' hosts have periodic maintenance."""
        return self.host_maintenance_interval == "PERIODIC"

    @property
    def workload_identity(self) -> bool | None:
        """Return whether pods use service accounts of their own; None: in new clusters, others stay unchanged."""
        if self.disable_workload_identity:
            return False
        return True if self.enable_workload_identity or self.enable_gcsfuse_csi_driver else None

    @property
    def scopes(self) -> tuple[str, ...]:
        """Return the nodes' scopes: broad ones only if pods use the nodes' service account."""
        return self.node_scopes or (FORMER_SCOPES if self.workload_identity is False else DEFAULT_SCOPES)

    @property
    def drivers(self) -> tuple[str, ...]:
        """Return the flags of the requested storage drivers."""
        return tuple(flag for flag in DRIVERS if getattr(self, flag[2:].replace("-", "_")))

    @property
    def custom_pool(self) -> tuple[str, ...]:
        """Return gcloud's arguments for the node pools of the slices."""
        return self.custom_nodepool_arguments + self.custom_tpu_nodepool_arguments


def region_of(location: str) -> str:
    """Return the region of a zone (us-east5-b), or of a region (us-east5)."""
    return location.rpartition("-")[0] if location.count("-") > 1 else location


def reservation_path(reservation: str, project: str) -> str:
    """Return a reservation with its project: `projects/P/reservations/R[/reservationBlocks/...]`."""
    return reservation if reservation.startswith("projects/") else f"projects/{project}/reservations/{reservation}"


def provisions_of(request: GkeOptions) -> str:
    """Return the requested capacity in the form that workloads use."""
    if request.reservation:
        path = reservation_path(request.reservation[0], request.project)
        return reserved(path.removeprefix(f"projects/{request.project}/reservations/"))
    return request.capacity or ON_DEMAND
