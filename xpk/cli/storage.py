"""`xpk storage`: named claims and buckets for workloads to mount."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from xpk.api.storages import TYPES, Storage, load
from xpk.capacity import storages
from xpk.capacity.plan.plan import Plan
from xpk.capacity.provider import provider_of
from xpk.capacity.storages import Connect, Filestore, StorageRequest
from xpk.cli.cluster.run_plan import ask, carry_out, dry_run_option, plan_output_option
from xpk.cli.google_xpk import Group, StorageCommand
from xpk.cli.options import Command, cluster_option, namespace_option, output_option
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console, age, list_options
from xpk.cli.terminal.tables import Column
from xpk.model.errors import (
    AuthorizationError,
    MissingToolError,
    TimedOutError,
    UnavailableError,
    UsageError,
    XpkError,
)

_COLUMNS = (
    Column("NAME", lambda s: s.name),
    Column("TYPE", lambda s: s.type),
    Column("SOURCE", lambda s: s.mount.source),
    Column("MOUNT POINT", lambda s: s.mount.target),
    Column("READ ONLY", lambda s: _yes(s.mount.read_only)),
    Column("AUTO MOUNT", lambda s: _yes(s.auto_mount)),
    Column("AGE", lambda s: age(s.created), key=lambda s: s.created),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageInfo:
    """A storage that workloads mount by name."""

    name: str  # name, unique in its namespace
    type: str  # kind of the storage, such as gcsfuse
    namespace: str  # Kubernetes namespace
    source: str  # bucket or claim
    mount_point: str  # folder on the hosts
    read_only: bool  # whether hosts cannot write to it
    auto_mount: bool  # whether every workload of the namespace mounts it
    mount_options: tuple[str, ...]  # mount options for the driver of a bucket
    prefetch_metadata: bool  # whether the driver lists the bucket's objects at the start


@click.group(cls=Group)
def storage() -> None:
    """Manage volumes that workloads mount by name."""


def _mount_options(command: Command) -> Command:
    """Add the options of a mount."""
    for option in (
        click.option(
            "--auto-mount", type=bool, default=False, help="Mount the storage in every workload of the namespace."
        ),
        click.option(
            "--readonly", "--read-only", "read_only", type=bool, default=False, help="Mount the storage read-only."
        ),
        click.option(
            "--mount-point", metavar="PATH", required=True, help="Folder on the hosts to mount the storage at."
        ),
    ):
        command = option(command)
    return command


@storage.command(cls=StorageCommand)
@click.argument("name")
@click.option(
    "--type", "kind", type=click.Choice(TYPES), default="claim", show_default=True, help="Type of the storage."
)
@_mount_options
@click.option("--bucket", metavar="BUCKET[/PREFIX]", help="gcsfuse: bucket to mount. [default: NAME]")
@click.option("--mount-options", default="", metavar="OPTION,...", help="gcsfuse: mount options of the driver.")
@click.option(
    "--prefetch-metadata/--no-prefetch-metadata", default=True, help="gcsfuse: list the bucket's objects at the start."
)
@click.option(
    "--manifest",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Manifest of the volume and its claim, to be applied.",
)
@click.option("--claim", metavar="CLAIM", help="Existing PersistentVolumeClaim. [default: NAME]")
@namespace_option
@cluster_option
@dry_run_option
@plan_output_option
@click.pass_obj
def attach(
    console: Console, /, name: str, kind: str, cluster: str | None, dry_run: bool, output: str | None, **options: Any
) -> None:
    """Register a bucket or a claim under a name for workloads to mount.

    \b
      xpk storage attach corpus --type gcsfuse --bucket my-bucket --mount-point /data --readonly true
      xpk workload create train --storage corpus ...
    """
    bucket = (options.pop("bucket") or "").removeprefix("gs://") or None
    request = StorageRequest(name=name, type=kind, bucket=bucket, **options)
    plan = storages.plan_attach(request, _connection(cluster, dry_run))
    carry_out(console.choosing(output), plan, dry_run=dry_run, then=f"xpk workload create NAME --storage {name}")


@storage.command(cls=StorageCommand)
@click.argument("name")
@click.option(
    "--type",
    "kind",
    type=click.Choice(TYPES),
    default="gcpfilestore",
    help="Type of the storage; must be gcpfilestore.",
)
@_mount_options
@click.option("--size", required=True, metavar="GIB", help="Size of the instance in GiB.")
@click.option(
    "--tier",
    type=click.Choice(list(storages.TIERS)),
    default="REGIONAL",
    show_default=True,
    help="Service tier of the instance.",
)
@click.option(
    "--access-mode",
    type=click.Choice(storages.ACCESS_MODES),
    default="ReadWriteMany",
    show_default=True,
    help="Access mode of the claim.",
)
@namespace_option
@cluster_option
@dry_run_option
@plan_output_option
@click.pass_obj
def create(
    console: Console, /, name: str, kind: str, cluster: str | None, dry_run: bool, output: str | None, **options: Any
) -> None:
    """Create a Filestore instance and attach it. Requires a cluster with --enable-gcpfilestore-csi-driver.

    \b
      xpk storage create shared --size 1024 --tier BASIC_HDD --mount-point /data
    """
    instance = Filestore(size=options.pop("size"), tier=options.pop("tier"), access_mode=options.pop("access_mode"))
    plan = storages.plan_create(
        StorageRequest(name=name, type=kind, **options), instance, _connection(cluster, dry_run)
    )
    carry_out(console.choosing(output), plan, dry_run=dry_run, then=f"xpk workload create NAME --storage {name}")


@storage.command("list", cls=StorageCommand)
@namespace_option
@cluster_option
@list_options(_COLUMNS)
@output_option
@click.pass_obj
def list_(console: Console, /, cluster: str | None, namespace: str, output: str | None, **options: Any) -> None:
    """List the storages of a namespace."""
    place = the_cluster(cluster)
    known = load(_reached(place), namespace)
    console = console.choosing(output, headers=not options["no_headers"], sort_by=options["sort_by"])
    console.items(known, columns=_COLUMNS, data=lambda storage: asdict(storage_info(storage)))
    if not known:
        console.tell(f"no storages in namespace '{namespace}' of '{place}'")


@storage.command(cls=StorageCommand)
@click.argument("name")
@namespace_option
@cluster_option
@dry_run_option
@plan_output_option
@click.pass_obj
def detach(console: Console, name: str, cluster: str | None, namespace: str, dry_run: bool, output: str | None) -> None:
    """Unregister a storage. Its volume, claim and data are kept."""
    plan = _checked(console, partial(storages.plan_detach, name, namespace), cluster, dry_run)
    carry_out(console.choosing(output), plan, dry_run=dry_run)


@storage.command(cls=StorageCommand)
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
@click.option("-f", "--force", is_flag=True, help="Do not prompt for confirmation; same as --yes.")
@namespace_option
@cluster_option
@dry_run_option
@plan_output_option
@click.pass_obj
def delete(console: Console, /, name: str, cluster: str | None, namespace: str, dry_run: bool, **options: Any) -> None:
    """Delete a Filestore instance created by `xpk storage create`, with all its data."""
    plan = _checked(console, partial(storages.plan_delete, name, namespace), cluster, dry_run)
    if not (options["yes"] or options["force"] or dry_run):
        ask(f"Delete storage '{name}' and all data in it?")
    carry_out(console.choosing(options["output"]), plan, dry_run=dry_run)


def _checked(console: Console, plan: Callable[[Connect | None], Plan], cluster: str | None, dry_run: bool) -> Plan:
    """Return a plan checked against the cluster; a dry run falls back to an unchecked plan if it is unreachable."""
    if not dry_run:
        return plan(_connection(cluster, dry_run))
    unchecked: XpkError
    try:
        place = the_cluster(cluster)
        provider_of(place)
    except XpkError as error:
        unchecked = error
    else:
        try:
            return plan(lambda: _reached(place))
        except (AuthorizationError, MissingToolError, TimedOutError, UnavailableError) as error:
            unchecked = error
    console.warn(f"the plan is not checked: {unchecked.message}")
    return plan(None)


def _connection(cluster: str | None, dry_run: bool) -> Connect | None:
    """Return a function that connects to the cluster; None in a dry run, which makes no request."""
    if dry_run:
        return None
    place = the_cluster(cluster)
    return lambda: _reached(place)


def _reached(place: str) -> Any:
    owner = provider_of(place)
    if owner.name == "local":
        raise UsageError(
            f"cluster '{place}' has no storages: its hosts are processes of this machine",
            hint="use the folders of this machine at their own paths",
        )
    return owner.connect(place)


def storage_info(storage: Storage) -> StorageInfo:
    """Return a storage as `xpk storage list` prints it."""
    mount = storage.mount
    return StorageInfo(
        name=storage.name,
        type=storage.type,
        namespace=storage.namespace,
        source=mount.source,
        mount_point=mount.target,
        read_only=mount.read_only,
        auto_mount=storage.auto_mount,
        mount_options=mount.options,
        prefetch_metadata=mount.prefetch_metadata,
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
