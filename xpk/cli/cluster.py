"""`xpk cluster`: capacity."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from xpk.capacity.plan import Plan
from xpk.capacity.provider import ClusterInfo, check_free, cluster_names, load_provider, provider_names, provider_of
from xpk.cli.options import name_argument, output_option, provider_option, the_cluster, the_name
from xpk.cli.output import Console, age, interactive, table
from xpk.cli.upstream import ClusterCommand
from xpk.model.accelerators import find_shape
from xpk.model.errors import UsageError, XpkError
from xpk.model.specs import ClusterSpec

_COLUMNS = (
    ("NAME", lambda c: c.name),
    ("PROVIDER", lambda c: c.provider),
    ("TYPE", lambda c: c.accelerator_type),
    ("SLICES", lambda c: c.num_slices),
    ("HOSTS", lambda c: c.num_slices * c.hosts_per_slice),
    ("CHIPS", lambda c: c.chips),
    ("STATE", lambda c: c.state),
    ("AGE", lambda c: age(c.created)),
)
_WIDE = (
    ("FREE", lambda c: sum(item.workload is None for item in c.slices)),
    ("LOCATION", lambda c: c.location),
)
_dry_run = click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
_num_slices = click.option("--num-slices", type=int, help="How many slices.")


@click.group()
def cluster() -> None:
    """Create, change and remove capacity. Jobs run on it with `xpk workload`."""


@cluster.command(cls=ClusterCommand)
@name_argument("cluster")
@click.option(
    "--tpu-type",
    "--device-type",
    "accelerator_type",
    metavar="TYPE",
    help="The slices' type, such as v5litepod-8; see `xpk accelerator list`.",
)
@_num_slices
@provider_option
@_dry_run
@output_option
@click.pass_obj
def create(
    console: Console,
    name: str | None,
    name_flag: str | None,
    accelerator_type: str | None,
    num_slices: int | None,
    provider: str | None,
    dry_run: bool,
    output: str | None,
) -> None:
    """Create a cluster of slices. Running it again changes nothing."""
    if not accelerator_type:
        raise UsageError("which accelerator type?", hint="--tpu-type v5litepod-8; `xpk accelerator list` shows all")
    spec = ClusterSpec(
        name=the_name("cluster", name, name_flag),
        shape=find_shape(accelerator_type),
        num_slices=1 if num_slices is None else num_slices,
    )
    check_free(spec.name, provider or "local")
    plan = load_provider(provider or "local").plan_create(spec)
    _carry_out(
        console.choosing(output),
        plan,
        dry_run=dry_run,
        then=f"xpk workload create NAME --cluster {spec.name} --num-slices {spec.num_slices}",
    )


@cluster.command(cls=ClusterCommand)
@name_argument("cluster")
@_num_slices
@click.option("--force", is_flag=True, help="End the workloads on slices that go.")
@provider_option
@_dry_run
@output_option
@click.pass_obj
def resize(
    console: Console,
    name: str | None,
    name_flag: str | None,
    num_slices: int | None,
    force: bool,
    provider: str | None,
    dry_run: bool,
    output: str | None,
) -> None:
    """Give a cluster another number of slices."""
    chosen = the_name("cluster", name, name_flag)
    if num_slices is None:
        raise UsageError("how many slices?", hint="--num-slices N")
    plan = provider_of(chosen, provider).plan_resize(chosen, num_slices, force=force)
    _carry_out(console.choosing(output), plan, dry_run=dry_run, then=f"xpk cluster describe {chosen}")


@cluster.command("list", cls=ClusterCommand)
@provider_option
@output_option
@click.pass_obj
def list_(console: Console, provider: str | None, output: str | None) -> None:
    """List the clusters there are."""
    console, found = console.choosing(output), []
    for kind in [provider] if provider else provider_names():
        source = load_provider(kind)
        for name in source.names():
            try:
                found.append(source.describe(name))
            except XpkError as error:  # one damaged cluster must not hide the others
                console.tell(f"warning: {error.message}")
    console.items(found, columns=_COLUMNS, wide=_WIDE, data=asdict)
    if not found:
        console.tell("there are no clusters; `xpk cluster create dev --tpu-type v5litepod-8` makes one")


@cluster.command(cls=ClusterCommand)
@name_argument("cluster")
@provider_option
@output_option
@click.pass_obj
def describe(
    console: Console, name: str | None, name_flag: str | None, provider: str | None, output: str | None
) -> None:
    """Show a cluster's slices and who holds them."""
    console = console.choosing(output)
    chosen = the_cluster(name or name_flag, provider)
    info = provider_of(chosen, provider).describe(chosen)
    if console.is_data:
        console.data(asdict(info))
        return
    for title, value in _facts(info).items():
        click.echo(f"{title + ':':<12} {value}")
    click.echo()
    click.echo(
        table(
            info.slices,
            [
                ("SLICE", lambda s: s.node_pool),
                ("HOSTS", lambda s: len(s.hosts)),
                ("WORKLOAD", lambda s: s.workload or "-"),
            ],
        )
    )


@cluster.command(cls=ClusterCommand)
@name_argument("cluster")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="End the workloads on it, and do not ask.")
@click.option("--ignore-not-found", is_flag=True, help="It is fine if there is none.")
@provider_option
@_dry_run
@output_option
@click.pass_obj
def delete(
    console: Console,
    name: str | None,
    name_flag: str | None,
    yes: bool,
    force: bool,
    ignore_not_found: bool,
    provider: str | None,
    dry_run: bool,
    output: str | None,
) -> None:
    """Remove a cluster with all that is on it, the output of its workloads included."""
    console, chosen = console.choosing(output), the_name("cluster", name, name_flag)
    if ignore_not_found and chosen not in cluster_names(provider):
        console.tell(f"there is no cluster '{chosen}'")
        return
    plan = provider_of(chosen, provider).plan_delete(chosen, force=force)
    if not (yes or force or dry_run):
        if not interactive():
            raise UsageError(f"delete cluster '{chosen}' and all output on it?", hint="say so with --yes")
        click.confirm(f"Delete cluster '{chosen}' and all output on it?", abort=True, err=True)
    _carry_out(console, plan, dry_run=dry_run)


def _carry_out(console: Console, plan: Plan, *, dry_run: bool, then: str = "") -> None:
    """Show a plan or carry it out. Only a dry run's plan is data."""
    if dry_run:
        if console.is_data:
            console.data({"summary": plan.summary, "steps": [step.title for step in plan.steps]})
            return
        click.echo(plan.summary)
        for number, step in enumerate(plan.steps, 1):
            click.echo(f"  {number}. {step.title}")
        if not plan.steps:
            click.echo("  nothing to do")
        return
    console.tell(plan.summary)
    plan.carry_out(console.done)
    console.tell("nothing to do: it is so already" if not plan.steps else f"  next: {then}" if then else "done")


def _facts(info: ClusterInfo) -> dict[str, Any]:
    busy = sum(item.workload is not None for item in info.slices)
    return {
        "Name": info.name,
        "Provider": info.provider,
        "State": info.state,
        "Type": info.accelerator_type,
        "Slices": f"{info.num_slices} ({busy} in use)",
        "Hosts": info.num_slices * info.hosts_per_slice,
        "Chips": info.chips,
        "Created": f"{info.created} ({age(info.created)} ago)",
        "Location": info.location,
    }
