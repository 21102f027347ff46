"""`xpk workload`: run and manage workloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import click

from xpk.api.base import Obj, ObjectApi
from xpk.capacity.provider import provider_of
from xpk.cli.google_xpk import WORKLOAD_COMMANDS, Group, WorkloadCommand
from xpk.cli.options import cluster_option, name_argument, namespace_option, output_option, output_root_option, the_name
from xpk.cli.target import output_roots, the_cluster
from xpk.cli.terminal.output import Console, echo
from xpk.cli.terminal.watch import Rows, watch, watch_option
from xpk.cli.workload import views
from xpk.cli.workload.chosen import connect_to_chosen, finder, inspect_chosen
from xpk.cli.workload.wait import read_progress, wait_for, with_progress
from xpk.jobs import lifecycle
from xpk.jobs import logs as logging
from xpk.jobs import port_forward as forwarding
from xpk.jobs.host_logs import HostLine, LogQuery
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.status import reader
from xpk.model import names
from xpk.model.durations import parse_since
from xpk.model.errors import NotFoundError, UsageError
from xpk.model.status import Phase, WorkloadStatus

# Imported when they are used: `create` takes longer to import than `list` takes to run.
_MODULES = {
    "create": "xpk.cli.workload.create:create",
    "delete": "xpk.cli.workload.delete:delete",
    "diff": "xpk.cli.workload.diff:diff",
    "estimate": "xpk.cli.workload.estimate:estimate",
    "list": "xpk.cli.workload.list:list_",
    "place": "xpk.cli.workload.place:place",
    "report": "xpk.cli.workload.report:report",
}


@click.group(cls=Group, instead=WORKLOAD_COMMANDS, modules=_MODULES)
def workload() -> None:
    """Run and manage workloads."""


@workload.command(cls=WorkloadCommand)
@name_argument("workload")
@cluster_option
@namespace_option
@output_root_option
@watch_option
@output_option
@click.pass_obj
def status(
    console: Console,
    name: str | None,
    name_flag: str | None,
    cluster: str | None,
    namespace: str,
    watch_: bool,
    output: str | None,
) -> None:
    """Show a workload's status and why it is not running."""
    place, workload_name, console = (
        the_cluster(cluster),
        the_name("workload", name, name_flag),
        console.choosing(output),
    )
    api, roots = provider_of(place).connect(place), output_roots(place)

    def read() -> Rows:
        nonlocal place, api, roots
        snapshot, _ = reader.inspect(api, workload_name, namespace, roots, brief=not console.is_data)
        if snapshot.clusters:
            place, snapshot, _ = inspect_chosen(console, place, api, snapshot, brief=not console.is_data)
            api, roots = provider_of(place).connect(place), output_roots(place)
        snapshot = _with_start(api, snapshot, roots)
        return [(snapshot, read_progress(console, snapshot, place) if console.output in ("table", "wide") else None)]

    def render(rows: Rows, _: bool) -> str:
        return "\n".join(views.status(snapshot, progress, place, console.width) for snapshot, progress in rows)

    if watch_:
        watch(console, api, read, render, namespace=namespace, until=lambda rows: rows[0][0].phase.is_final)
        return
    rows = read()
    if console.is_data:
        console.data(with_progress(console, rows[0][0], place))
    elif console.output == "name":
        echo(workload_name)
    else:
        echo(render(rows, True))


@workload.command(cls=WorkloadCommand)
@name_argument("workload")
@cluster_option
@namespace_option
@output_root_option
@output_option
@click.pass_obj
def describe(
    console: Console, name: str | None, name_flag: str | None, cluster: str | None, namespace: str, output: str | None
) -> None:
    """Show a workload's status with all its hosts, restarts, mounts and events."""
    place, workload_name = the_cluster(cluster), the_name("workload", name, name_flag)
    api, console = provider_of(place).connect(place), console.choosing(output)
    roots = output_roots(place)
    snapshot, events = reader.inspect(api, workload_name, namespace, roots)
    if snapshot.clusters:
        place, snapshot, events = inspect_chosen(console, place, api, replace(snapshot, events=events))
        api, roots = provider_of(place).connect(place), output_roots(place)
    snapshot = _with_start(api, snapshot, roots)
    if console.is_data:
        console.data(with_progress(console, replace(snapshot, events=events), place))
    elif console.output == "name":
        echo(snapshot.name)
    else:
        echo(views.describe(snapshot, read_progress(console, snapshot, place), events, place, console.width))


@workload.command(cls=WorkloadCommand)
@name_argument("workload")
@cluster_option
@namespace_option
@click.option("-f", "--follow", is_flag=True, help="Stream new lines, across restarts, until the workload ends.")
@click.option("--slice", "slice_id", type=int, help="Print only hosts of this slice.")
@click.option("--host", type=int, help="Print only hosts with this index in their slice.")
@click.option(
    "-p",
    "--previous",
    is_flag=True,
    help="Print the log before the last restart with new pods (local clusters only: Kubernetes deletes them).",
)
@click.option("--since", metavar="TIME", help="Print only lines newer than 90s, 5m, 2h, or since an RFC 3339 time.")
@click.option("--tail", type=click.IntRange(0, 10**9), help="Print only the last N lines of each host.", metavar="N")
@click.option("--grep", metavar="REGEX", help="Print only lines that match.")
@click.option("--all-lines", is_flag=True, help="Include Gloo's messages about its connections.")
@click.option("--timestamps", is_flag=True, help="Prefix each line with its time.")
@click.option("--raw", is_flag=True, help="Print control sequences unescaped; they may change your terminal.")
@click.option("--prefix/--no-prefix", default=True, show_default=True, help="Prefix each line with its host.")
@click.pass_obj
def logs(
    console: Console, /, name: str | None, name_flag: str | None, cluster: str | None, namespace: str, **options: Any
) -> None:
    """Print the logs of a workload's hosts, merged by time, as `s<slice>/h<host> │ line`.

    Reads at most 128 hosts; use --slice or --host to select fewer. Hosts without a log are listed on stderr.
    With --follow, the exit code is 0 if the workload succeeded and 8 if it failed.
    """
    place, workload_name = the_cluster(cluster), the_name("workload", name, name_flag)
    if options["follow"] and options["previous"]:
        raise UsageError("--follow and --previous exclude each other", hint="omit --follow")
    query = LogQuery(
        slice=options["slice_id"],
        host=options["host"],
        since=parse_since(options["since"]),
        tail=options["tail"],
        grep=options["grep"],
        all_lines=options["all_lines"],
    )
    style = {key: options[key] for key in ("prefix", "timestamps", "raw")} | {"color": console.prints_color}

    def show(lines: Iterator[HostLine]) -> None:
        for line in lines:
            click.echo(views.log_line(line, **style))

    find = finder(place, workload_name, namespace)
    if options["follow"]:
        _follow(console, find, workload_name, namespace, query, show)
        return
    place, api = find()
    where = names.location_flags(place, namespace)
    previous, tell = options["previous"], console.tell
    show(logging.read_logs(api, workload_name, namespace, query, previous=previous, where=where, tell=tell))


@workload.command(cls=WorkloadCommand)
@name_argument("workload")
@cluster_option
@namespace_option
@click.option("--timeout", metavar="TIME", help="Maximum time to wait, such as 90s, 10m or 2h. [default: unlimited]")
@output_root_option
@output_option
@click.pass_obj
def wait(
    console: Console,
    name: str | None,
    name_flag: str | None,
    cluster: str | None,
    namespace: str,
    timeout: str | None,
    output: str | None,
) -> None:
    """Wait until a workload ends.

    Exit code 0 if it succeeded, 8 if it failed, 124 after --timeout.
    """
    place, workload_name = the_cluster(cluster), the_name("workload", name, name_flag)
    place, _ = connect_to_chosen(place, workload_name, namespace)
    wait_for(console.choosing(output), place, workload_name, namespace, timeout)


@workload.command(cls=WorkloadCommand)
@name_argument("workload")
@cluster_option
@namespace_option
@click.pass_obj
def suspend(console: Console, name: str | None, name_flag: str | None, cluster: str | None, namespace: str) -> None:
    """Suspend a workload. It saves a checkpoint and releases its slices until `xpk workload resume`."""
    place, workload_name = the_cluster(cluster), the_name("workload", name, name_flag)
    place, api = connect_to_chosen(place, workload_name, namespace)
    where = names.location_flags(place, namespace)
    lifecycle.set_active(api, workload_name, namespace, active=False, where=where)
    console.done(f"workload '{workload_name}' suspended; `xpk workload resume {workload_name}{where}` queues it again")


@workload.command(cls=WorkloadCommand)
@name_argument("workload")
@cluster_option
@namespace_option
@click.pass_obj
def resume(console: Console, name: str | None, name_flag: str | None, cluster: str | None, namespace: str) -> None:
    """Resume a suspended workload: it is queued again and continues from its newest checkpoint."""
    place, workload_name = the_cluster(cluster), the_name("workload", name, name_flag)
    place, api = connect_to_chosen(place, workload_name, namespace)
    where = names.location_flags(place, namespace)
    lifecycle.set_active(api, workload_name, namespace, active=True, where=where)
    console.done(f"workload '{workload_name}' queued again")


@workload.command("exec", cls=WorkloadCommand)
@name_argument("workload")
@cluster_option
@namespace_option
@click.option("--slice", "slice_id", type=int, default=0, show_default=True, help="Slice of the host.")
@click.option("--host", type=int, default=0, show_default=True, help="Index of the host in its slice.")
@click.option("-it", "interactive", is_flag=True, help="Attach a terminal to the program.")
@click.pass_context
def exec_(ctx: click.Context, /, name: str | None, name_flag: str | None, cluster: str | None, **options: Any) -> None:
    """Run COMMAND on a host, with the host's environment: `xpk workload exec NAME -- COMMAND`."""
    place, workload_name = the_cluster(cluster), the_name("workload", name, name_flag)
    command = ctx.meta.get("trainer_args") or ()
    if not command:
        raise UsageError("no command given", hint=f"xpk workload exec {workload_name} -- COMMAND")
    place, api = connect_to_chosen(place, workload_name, options["namespace"])
    pod = reader.find_pod(api, workload_name, options["namespace"], options["slice_id"], options["host"])
    ctx.exit(api.exec(pod, command, interactive=options["interactive"]))


@workload.command("port-forward", cls=WorkloadCommand)
@name_argument("workload")
@click.argument("ports", required=False, default="8265", metavar="[[LOCAL:]PORT]")
@cluster_option
@namespace_option
@click.option("--slice", "slice_id", type=int, default=0, show_default=True, help="Slice of the host.")
@click.option("--host", type=int, default=0, show_default=True, help="Index of the host in its slice.")
@click.pass_obj
def port_forward(
    console: Console, /, name: str | None, name_flag: str | None, cluster: str | None, ports: str, **options: Any
) -> None:
    """Forward a port of a host to this machine: `xpk workload port-forward NAME [[LOCAL:]PORT]`.

    PORT defaults to 8265, the port of Ray's dashboard and jobs API. On local, where hosts are processes of this
    machine, only the address is printed; elsewhere forwarding runs until Ctrl-C.
    """
    place, workload_name = the_cluster(cluster), the_name("workload", name, name_flag)
    local, remote = forwarding.parse_ports(ports)
    place, api = connect_to_chosen(place, workload_name, options["namespace"])
    pod = reader.find_pod(api, workload_name, options["namespace"], options["slice_id"], options["host"])
    is_here = provider_of(place).target(place).on_this_machine
    with closing(api.connect(pod, remote)) as connection:  # fail before an address is printed
        reached = connection.getpeername()[0] if is_here else ""
    if is_here:
        address = f"{reached}:{remote}"
        _print_ray_address(console, api, pod, address)
        echo(address)
        return
    with forwarding.listen(local, remote) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        _print_ray_address(console, api, pod, address)
        echo(address)  # after the token is in its file, as a program that reads this line continues at once
        console.tell(f"forwarding to port {remote} of host s{options['slice_id']}/h{options['host']}; Ctrl-C stops")
        forwarding.serve(listener, lambda: api.connect(pod, remote), console.tell)


def _follow(
    console: Console,
    find: Callable[[], tuple[str, ObjectApi]],
    name: str,
    namespace: str,
    query: LogQuery,
    show: Callable[[Iterator[HostLine]], None],
) -> None:
    """Show lines until a workload ends, and report its end. Raises WorkloadFailedError, or NotFoundError.

    `find` returns the cluster where it runs: if its copy on the first one is deleted, it may have ended elsewhere.
    """
    place, api = find()
    while True:
        flags = names.location_flags(place, namespace)
        with lifecycle.EndWatch(api, name, namespace) as watched:
            show(logging.follow_logs(api, name, namespace, query, where=flags, tell=console.tell))
            ended = _end_of(api, name, namespace, watched)
        if ended is not None:
            lifecycle.check_succeeded(ended, where=flags, then="status")
            console.done(f"workload '{name}' succeeded")
            return
        before = place
        place, api = find()
        if place == before:
            raise NotFoundError(f"workload '{name}' was deleted", hint=f"`xpk workload list{flags}`")
        console.tell(f"workload '{name}' was moved to cluster '{place}'")


def _end_of(api: ObjectApi, name: str, namespace: str, watched: lifecycle.EndWatch) -> WorkloadStatus | None:
    """Return the final status of a workload, None if it was deleted before its end."""
    try:
        return reader.find(api, name, namespace)
    except NotFoundError:
        return watched.last_status()


def _print_ray_address(console: Console, api: ObjectApi, pod: Obj, address: str) -> None:
    """Print how to reach a workload's Ray cluster with Ray's own client; its token is written to a private file."""
    if token := forwarding.ray_token(api, pod):
        from xpk.capacity.kubeconfig import write_private  # no other command here needs these imports
        from xpk.capacity.state import state_dir

        meta = pod["metadata"]
        file = state_dir() / "ray" / f"{meta['namespace']}.{meta['labels'][names.WORKLOAD_LABEL]}.token"
        write_private(file, token)
        console.tell(f"  export RAY_ADDRESS=http://{address} RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={file}")
        console.tell("  next: ray job submit --working-dir . -- python my_ray_script.py")


def _with_start(api: ObjectApi, status: WorkloadStatus, roots: OutputRoots) -> WorkloadStatus:
    """Return the status with the estimated start of a queued workload."""
    if status.phase is not Phase.QUEUED:
        return status
    from xpk.jobs.simulation.live import with_start  # brings the queue's decisions

    return with_start(api, status, roots)
