"""`xpk cluster cache-image` and `health`: image caching and health of the nodes of a cluster's slices."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from xpk.capacity.gke.request.options import GkeOptions
from xpk.cli.cluster.provider_options import provider_options
from xpk.cli.cluster.run_plan import Live, dry_run_option, provider_with
from xpk.cli.google_xpk import ClusterCommand
from xpk.cli.options import accelerator_option, context_option, name_argument, output_option, provider_option
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console, age, echo
from xpk.cli.terminal.tables import Column
from xpk.jobs.code.archive import format_size
from xpk.model.accelerators import find_shape
from xpk.model.durations import parse_duration
from xpk.model.errors import AuthorizationError, UsageError, XpkError

_IMAGE_COLUMNS = (
    Column("IMAGE", lambda i: i.image),
    Column("NODES", lambda i: i.nodes),
    Column("PULLED", lambda i: i.pulled),
    Column("PRESENT", lambda i: i.present),
    Column("FAILED", lambda i: len(i.failed)),
    Column("P50", lambda i: _seconds(i.p50_seconds), drop=3),
    Column("P95", lambda i: _seconds(i.p95_seconds), drop=2),
    Column("MAX", lambda i: _seconds(i.max_seconds), drop=1),
    Column("SIZE", lambda i: _size(i.size_bytes), drop=4),
    Column("FETCHED", lambda i: _size(i.pulled_bytes), drop=5),
)
_FAILURE_COLUMNS = (
    Column("IMAGE", lambda row: row[0]),
    Column("FAILED", lambda row: row[1]),
    Column("ON", lambda row: row[2], wrap=True),
    Column("WHY", lambda row: row[3], wrap=True),
)
_SLICE_COLUMNS = (
    Column("SLICE", lambda s: s.node_pool),
    Column("TYPE", lambda s: s.accelerator_type),
    Column("HOSTS", lambda s: f"{s.hosts_ready}/{s.hosts}"),
    Column("CHIPS", lambda s: f"{s.chips_offered}/{s.chips}"),
    Column("STATE", lambda s: s.state),
    Column("WORKLOAD", lambda s: s.workload or ("spare" if s.spare else "-")),
)
_TROUBLE_COLUMNS = (
    Column("SLICE", lambda row: row[0]),
    Column("HOST", lambda row: row[1].node or "-"),
    Column("TROUBLE", lambda row: row[1].reason),
    Column("SINCE", lambda row: age(row[1].since)),
    Column("MESSAGE", lambda row: row[1].message, wrap=True),
)


@click.command("cache-image", cls=ClusterCommand)
@name_argument("cluster")
@click.option(
    "--image", "--docker-image", "images", metavar="IMAGE", multiple=True, help="Image to pull; may be repeated."
)
@click.option("--pools", metavar="SLICE,...", help="Pull only onto nodes of these slices.")
@accelerator_option("Pull only onto slices of this accelerator type.")
@click.option("--docker-image-pull-secret", "pull_secret", metavar="NAME", help="Secret to pull the images with.")
@click.option(
    "--timeout", default="30m", show_default=True, metavar="TIME", help="Maximum duration, such as 90s, 10m or 2h."
)
@click.option("--wait/--no-wait", default=True, help="Wait until all nodes have the images.", show_default=True)
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the pulling pods.")
@context_option
@provider_option
@provider_options("find", GkeOptions)
@dry_run_option
@output_option
@click.pass_obj
def cache_image(
    console: Console,
    /,
    name: str | None,
    name_flag: str | None,
    images: tuple[str, ...],
    pools: str | None,
    accelerator_type: str | None,
    pull_secret: str | None,
    timeout: str,
    wait: bool,
    namespace: str,
    provider: str | None,
    dry_run: bool,
    output: str | None,
    **flags: Any,
) -> None:
    """Pull images onto all nodes of slices before a large run, and report the duration.

    The images are not run and no accelerators are requested, so workloads keep running.

    \b
      xpk cluster cache-image prod --image us-docker.pkg.dev/p/r/trainer:7
    """
    from xpk.capacity.images import cache as caching

    if not images:
        raise UsageError("no image given", hint="--image REGISTRY/NAME:TAG; may be repeated")
    shape = find_shape(accelerator_type) if accelerator_type else None
    if dry_run and (why := _unreachable(name or name_flag, provider, flags)):
        console.warn(f"cannot read the nodes of the cluster: {why}")
        echo(f"pull onto all nodes of {shape.name if shape else 'all'} slices: {', '.join(images)}")
        return
    console, cluster_name = console.choosing(output), the_cluster(name or name_flag, provider)
    source = provider_with(cluster_name, provider, flags)
    target = source.target(cluster_name)
    if target.on_this_machine:
        console.tell(f"hosts of '{cluster_name}' are processes of this machine and need no images")
        if console.is_data:
            console.data(asdict(caching.CacheOutcome(name="", nodes=0, seconds=0.0, in_time=True, images=())))
        return
    seconds = parse_duration(timeout, "--timeout") or 0.0
    request = caching.CacheRequest(
        images=images,
        pools=tuple(filter(None, (pools or "").split(","))),
        shape=shape,
        namespace=namespace,
        image_pull_secret=pull_secret,
        seconds=seconds,
        have_first=target.shared_folder is not None,  # as for workloads there
    )
    api = source.connect(cluster_name)
    planned = caching.plan(api, request)
    if dry_run:
        _show(console, planned)
        return
    caching.begin(api, planned)
    what = f"pull {len(images)} images" if len(images) > 1 else f"pull {images[0]}"
    if not wait:
        console.tell(f"{len(planned.nodes)} nodes {what}; stops after {timeout}")
        console.tell("  next: run the same command without --no-wait to see the result")
        return
    live = Live(console)
    outcome = caching.await_all(
        api, planned, seconds, lambda done, of, spent: live.show({what: f"{done} of {of} nodes, {spent:.0f} s"})
    )
    error = outcome.error()
    (live.warn if error else live.done)(f"{what}: {outcome.nodes} nodes, {outcome.seconds:.0f} s")
    if console.is_data:
        console.data(asdict(outcome))
    else:
        _print(console, outcome)
    if error:
        raise error


def _unreachable(cluster: str | None, provider: str | None, flags: dict[str, Any]) -> str:
    """Return the reason why this user cannot reach a cluster, "" if they can."""
    try:
        cluster_name = the_cluster(cluster, provider)
        provider_with(cluster_name, provider, flags).connect(cluster_name)
    except AuthorizationError as error:
        return error.message
    return ""


@click.command(cls=ClusterCommand)
@name_argument("cluster")
@context_option
@provider_option
@provider_options("find", GkeOptions)
@output_option
@click.pass_obj
def health(
    console: Console, /, name: str | None, name_flag: str | None, provider: str | None, output: str | None, **flags: Any
) -> None:
    """Show for each slice whether its hosts are ready, offer their chips and accept workloads.

    Exit code 1 if a slice does not accept workloads.
    """
    from xpk.capacity.nodes.health import health_of  # the other commands need neither
    from xpk.capacity.nodes.inventory import some_of

    console, cluster_name = console.choosing(output), the_cluster(name or name_flag, provider)
    source = provider_with(cluster_name, provider, flags)
    slices = health_of(source.connect(cluster_name), source.describe(cluster_name))
    console.items(
        slices,
        columns=_SLICE_COLUMNS,
        data=lambda s: {"name": s.node_pool, "state": s.state, "usable": s.is_usable, **asdict(s)},
    )
    troubles = [(health.node_pool, trouble) for health in slices for trouble in health.troubles]
    if troubles and console.output in ("table", "wide"):
        echo()
        echo(console.table(troubles, _TROUBLE_COLUMNS))
    if bad := [health for health in slices if not health.is_usable]:
        node = next(
            (trouble.node for health in bad for trouble in health.troubles if trouble.blocks and trouble.node), ""
        )
        look = (
            f"`kubectl describe node {node}` with the kubeconfig of `xpk cluster kubeconfig {cluster_name}`"
            if node
            else f"`xpk cluster describe {cluster_name}`; run `create` again to add missing hosts"
        )
        raise XpkError(
            f"{len(bad)} of {len(slices)} slices do not accept workloads: "
            f"{some_of([health.node_pool for health in bad])}",
            hint=look,
        )


def _print(console: Console, outcome: Any) -> None:
    """Print the pulls of each image, and each kind of failure once with its nodes."""
    from xpk.capacity.images.pull_status import alike
    from xpk.capacity.nodes.inventory import some_of

    echo(console.table(outcome.images, _IMAGE_COLUMNS))
    troubles = [(pulls.image, words, nodes) for pulls in outcome.images for words, nodes in alike(pulls.failed)]
    if rows := [(image, len(nodes), some_of(nodes), words) for image, words, nodes in troubles]:
        echo()
        echo(console.table(rows, _FAILURE_COLUMNS))


def _show(console: Console, planned: Any) -> None:
    """Print the objects that would be created."""
    from xpk.render import to_yaml

    objects, spec = planned.objects(), planned.spec
    if console.output == "json":
        console.data(objects)
    else:
        click.echo(to_yaml(objects), nl=False)
    console.tell(f"{len(planned.nodes)} nodes; the Job owns the other objects and ends after {spec.seconds} s")


def _seconds(value: float) -> str:
    return f"{value:.1f}s" if value < 100 else f"{value:.0f}s"


def _size(value: int | None) -> str:
    return "-" if value is None else format_size(value)
