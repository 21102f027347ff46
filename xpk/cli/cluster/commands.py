"""`xpk cluster`: create, resize, list, describe and delete clusters."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from xpk.capacity.clusters import find_clusters
from xpk.capacity.gke.request.options import GkeOptions
from xpk.capacity.kind.options import KindOptions
from xpk.capacity.provider import ClusterInfo, provider_of
from xpk.cli.cluster.adapt import adapt, adapt_as_created
from xpk.cli.cluster.fence import fence
from xpk.cli.cluster.nodes import cache_image, health
from xpk.cli.cluster.preflight import preflight
from xpk.cli.cluster.provider_options import chosen_provider, given_flags, provider_options, valid_options
from xpk.cli.cluster.request import parse_create_request, parse_resize_request
from xpk.cli.cluster.run_plan import (
    ask,
    carry_out,
    dry_run_option,
    plan_output_option,
    provider_with,
)
from xpk.cli.google_xpk import CLUSTER_COMMANDS, ClusterCommand, Group
from xpk.cli.options import (
    accelerator_option,
    context_option,
    maker_option,
    name_argument,
    output_option,
    provider_filter_option,
    provider_option,
    the_name,
)
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console, age, echo, list_options
from xpk.cli.terminal.tables import Column, wrapped
from xpk.model.errors import NotFoundError

_COLUMNS = (
    Column("NAME", lambda c: c.name),
    Column("PROVIDER", lambda c: c.provider, drop=3),
    Column("TYPE", lambda c: c.accelerator_type),
    Column("SLICES", lambda c: c.num_slices),
    Column("HOSTS", lambda c: _hosts(c), drop=1),
    Column("CHIPS", lambda c: c.chips, drop=2),
    Column("STATE", lambda c: c.state),
    Column("AGE", lambda c: age(c.created), key=lambda c: c.created),
)
_WIDE = (
    Column("FREE", lambda c: sum(item.workload is None and not item.spare for item in c.slices)),
    Column("LOCATION", lambda c: c.location),
)
_num_slices = click.option("--num-slices", type=int, help="Number of slices.")


@click.group(cls=Group, instead=CLUSTER_COMMANDS, other_names={"cacheimage": "cache-image"})
def cluster() -> None:
    """Create and manage clusters. `xpk workload` runs jobs on them."""


cluster.add_command(adapt)
cluster.add_command(cache_image)
cluster.add_command(fence)
cluster.add_command(health)
cluster.add_command(preflight)


@cluster.command(cls=ClusterCommand)
@name_argument("cluster")
@accelerator_option("Accelerator type of the slices, such as v5litepod-8; see `xpk accelerator list`.")
@click.option("--num-slices", type=int, help="Number of slices. [default: the existing slices; 1 in a new cluster]")
@maker_option
@click.option("--num-nodes", type=click.IntRange(1), help="Number of hosts, for GPU and CPU types; each is a slice.")
@provider_options("create", KindOptions, GkeOptions)
@click.option("--num-cubes", type=int, hidden=True, help="Number of slices of one cube; same as --num-slices.")
@click.option("--adapt-from-ct", is_flag=True, hidden=True, help="Same as `xpk cluster adapt`.")
@click.option("--force", is_flag=True, hidden=True, expose_value=False, help="No effect; nothing is deleted.")
@dry_run_option
@plan_output_option
@click.pass_obj
def create(
    console: Console,
    /,
    name: str | None,
    name_flag: str | None,
    accelerator_type: str | None,
    num_slices: int | None,
    num_nodes: int | None,
    num_cubes: int | None,
    provider: str | None,
    adapt_from_ct: bool,
    dry_run: bool,
    output: str | None,
    **flags: Any,
) -> None:
    """Create a cluster of slices. Idempotent: a second run completes missing parts.

    Flags whose help begins with a provider's name apply only to that provider.
    """
    names, counts = (name, name_flag), (num_slices, num_nodes, num_cubes)
    if adapt_from_ct:
        adapt_as_created(console.choosing(output), names, accelerator_type, counts, flags, dry_run=dry_run)
        return
    spec, plan = parse_create_request(names, accelerator_type, counts, provider, flags, dry_run=dry_run)
    carry_out(
        console.choosing(output),
        plan,
        dry_run=dry_run,
        then=f"xpk workload create NAME --cluster {spec.name} --num-slices {max(1, spec.num_slices)}",
    )


@cluster.command(cls=ClusterCommand)
@name_argument("cluster")
@context_option
def kubeconfig(name: str | None, name_flag: str | None) -> None:
    """Print a kubeconfig for a cluster; your own kubeconfig is never changed.

    \b
      xpk cluster kubeconfig dev > dev.kubeconfig
      kubectl --kubeconfig dev.kubeconfig get pods
    """
    cluster_name = the_cluster(name or name_flag)
    click.echo(provider_of(cluster_name).kubeconfig(cluster_name), nl=False)


@cluster.command(cls=ClusterCommand)
@name_argument("cluster")
@_num_slices
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
@click.option("--force", is_flag=True, help="Delete the workloads on removed slices; do not prompt for confirmation.")
@provider_option
@provider_options("resize", GkeOptions)
@dry_run_option
@plan_output_option
@click.pass_obj
def resize(
    console: Console,
    /,
    name: str | None,
    name_flag: str | None,
    num_slices: int | None,
    yes: bool,
    force: bool,
    provider: str | None,
    dry_run: bool,
    output: str | None,
    **flags: Any,
) -> None:
    """Change a cluster's number of slices."""
    cluster_name, count = parse_resize_request((name, name_flag), num_slices, flags)
    plan = provider_with(cluster_name, provider, flags).plan_resize(cluster_name, count, force=force)
    if plan.question and not (yes or force or dry_run):
        ask(plan.question)
    carry_out(console.choosing(output), plan, dry_run=dry_run, then=f"xpk cluster describe {cluster_name}")


@cluster.command("list", cls=ClusterCommand)
@provider_filter_option
@provider_options("find", GkeOptions)
@list_options((*_COLUMNS, *_WIDE))
@output_option
@click.pass_obj
def list_(console: Console, /, provider: str | None, output: str | None, **flags: Any) -> None:
    """List clusters; with --project, all clusters in the project."""
    console = console.choosing(output, headers=not flags.pop("no_headers"), sort_by=flags.pop("sort_by"))
    flag_names = given_flags(flags)
    provider = chosen_provider(provider, flag_names) if flag_names else provider
    options = valid_options(provider, flags) if provider and flag_names else None
    shows_free = console.is_data or console.output == "wide" or console.sort_by in _WIDE
    infos = find_clusters(provider, options, brief=not shows_free, warn=console.warn)
    console.items(infos, columns=_COLUMNS, wide=_WIDE, data=asdict)
    if not infos:
        console.tell("no clusters; `xpk cluster create dev --tpu-type v5litepod-8` creates one")


@cluster.command(cls=ClusterCommand)
@name_argument("cluster")
@context_option
@provider_option
@provider_options("find", GkeOptions)
@output_option
@click.pass_obj
def describe(
    console: Console, /, name: str | None, name_flag: str | None, provider: str | None, output: str | None, **flags: Any
) -> None:
    """Show a cluster and the workload on each of its slices."""
    console = console.choosing(output)
    cluster_name = the_cluster(name or name_flag, provider)
    info = provider_with(cluster_name, provider, flags).describe(cluster_name)
    if console.is_data:
        console.data(asdict(info))
        return
    for title, value in _facts(info).items():
        echo(wrapped(f"{title + ':':<12} {value}", console.width, 13))
    echo()
    echo(
        console.table(
            info.slices,
            [
                Column("SLICE", lambda s: s.node_pool),
                Column("HOSTS", lambda s: len(s.hosts)),
                Column("WORKLOAD", lambda s: s.workload or ("spare" if s.spare else "-")),
            ],
        )
    )


@cluster.command(cls=ClusterCommand)
@name_argument("cluster")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
@click.option("--force", is_flag=True, help="Delete the workloads on the cluster; do not prompt for confirmation.")
@click.option("--ignore-not-found", is_flag=True, help="Exit with code 0 if the cluster does not exist.")
@provider_option
@provider_options("find", GkeOptions)
@dry_run_option
@plan_output_option
@click.pass_obj
def delete(
    console: Console,
    /,
    name: str | None,
    name_flag: str | None,
    yes: bool,
    force: bool,
    ignore_not_found: bool,
    provider: str | None,
    dry_run: bool,
    output: str | None,
    **flags: Any,
) -> None:
    """Delete a cluster. Output in buckets stays, and of an adapted cluster the nodes, JobSet and Kueue."""
    console, cluster_name = console.choosing(output), the_name("cluster", name, name_flag)
    try:
        plan = provider_with(cluster_name, provider, flags).plan_delete(cluster_name, force=force)
    except NotFoundError:
        if not ignore_not_found:
            raise
        console.tell(f"cluster '{cluster_name}' not found")
        return
    if not (yes or force or dry_run):
        ask(f"{plan.summary[:1].upper()}{plan.summary[1:]}?")
    carry_out(console, plan, dry_run=dry_run)


def _hosts(info: ClusterInfo) -> int:
    """Return the number of hosts; slices of several types are counted one by one."""
    each = info.num_slices * info.hosts_per_slice
    return each or sum(len(item.hosts) for item in info.slices if not item.spare)


def _facts(info: ClusterInfo) -> dict[str, Any]:
    busy = sum(item.workload is not None for item in info.slices)
    spare = sum(item.spare for item in info.slices)
    return {
        "Name": info.name,
        "Provider": info.provider,
        "State": info.state,
        "Type": info.accelerator_type,
        "Slices": f"{info.num_slices} ({busy} in use{f', plus {spare} spare' if spare else ''})",
        "Hosts": _hosts(info),
        "Chips": info.chips,
        "Created": f"{info.created} ({age(info.created)} ago)",
        "Location": info.location,
    }
