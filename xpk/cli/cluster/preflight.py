"""`xpk cluster preflight`: check the hosts of free slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from xpk.api.text import counted
from xpk.cli import complete
from xpk.cli.google_xpk import ClusterCommand
from xpk.cli.options import accelerator_option, context_option, name_argument, namespace_option, output_option
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console
from xpk.cli.terminal.tables import Column
from xpk.model import names
from xpk.model.durations import parse_duration
from xpk.model.errors import UsageError, XpkError
from xpk.model.status import WorkloadStatus

if TYPE_CHECKING:
    from xpk.jobs.preflight import HostChecks

_CHECKS = ("chips", "bf16", "int8", "memory", "ici", "dcn", "clock", "disk", "dns")


def _cell(host: HostChecks, check: str) -> str:
    results = [result for result in host.checks if result.check == check]
    if not results:
        return "-"
    failed = next((result for result in results if not result.passed), None)
    if failed:
        return "FAILED"
    return f"{results[0].value:.3g}" if results[0].unit == "GB/s" else "ok"


def _column(check: str) -> Column:
    unit = " GB/S" if check in ("ici", "dcn") else ""
    return Column(check.upper() + unit, lambda host: _cell(host, check))


_COLUMNS = (
    Column("HOST", lambda h: h.label),
    Column("NODE", lambda h: h.node or "-"),
    *map(_column, _CHECKS),
    Column("PROBLEM", lambda h: h.problem or "-", wrap=True),
)


@click.command(cls=ClusterCommand)
@name_argument("cluster")
@accelerator_option("Check slices of this type. [default: the type of the free slices]")
@click.option("--num-slices", type=click.IntRange(1), metavar="N", help="Number of slices. [default: all free slices]")
@click.option(
    "--node",
    metavar="NODE",
    shell_complete=complete.nodes,
    help="Check the quarantined slice of NODE, as `xpk node return` requires.",
)
@click.option("--min-ici-gbps", type=click.FloatRange(0), metavar="GB/S", help="Minimum bandwidth within a slice.")
@click.option("--min-dcn-gbps", type=click.FloatRange(0), metavar="GB/S", help="Minimum bandwidth between slices.")
@click.option("--queue", help=f"LocalQueue of the checks. [default: {names.QUEUE}, or the only queue of the namespace]")
@click.option(
    "--docker-image", "--image", "image", metavar="IMAGE", help="Trainer image. [default: the cluster's trainer image]"
)
@click.option(
    "--output-root",
    metavar="OUTPUT_ROOT",
    envvar="XPK_OUTPUT_ROOT",
    show_envvar=True,
    help="Write results to OUTPUT_ROOT/NAME. [default: the cluster's output root]",
)
@click.option("--timeout", default="15m", show_default=True, metavar="TIME", help="Time limit, including the queue.")
@click.option("--keep", is_flag=True, help="Keep the workload and its output.")
@namespace_option
@context_option
@output_option
@click.pass_obj
def preflight(
    console: Console,
    /,
    name: str | None,
    name_flag: str | None,
    accelerator_type: str | None,
    num_slices: int | None,
    node: str | None,
    min_ici_gbps: float | None,
    min_dcn_gbps: float | None,
    queue: str | None,
    image: str | None,
    output_root: str | None,
    timeout: str,
    keep: bool,
    namespace: str,
    output: str | None,
) -> None:
    """Check chips, memory, network, clocks and disks of all hosts of free slices, or of a quarantined one.

    The checks run as a workload of the lowest priority, which is deleted afterwards. Exit code 1 if a host fails.
    """
    from xpk.checks import check_hosts  # bring what creates workloads, which no other command of clusters needs
    from xpk.cli.workload.create import print_steps
    from xpk.client import Cluster

    console = console.choosing(output)
    if node and (num_slices or accelerator_type):
        raise UsageError(f"--node and {'--num-slices' if num_slices else '--tpu-type'} exclude each other: choose one")
    floors = {"ici": min_ici_gbps, "dcn": min_dcn_gbps}
    seconds = parse_duration(timeout, "--timeout")
    result = check_hosts(
        Cluster(the_cluster(name or name_flag)),
        num_slices,
        accelerator_type=accelerator_type,
        node=node,
        namespace=namespace,
        queue=queue,
        image=image,
        output_root=output_root,
        min_gbps={link: gbps for link, gbps in floors.items() if gbps is not None},
        timeout=seconds,
        keep=keep,
        on_progress=print_steps(console),
        on_status=_teller(console),
    )
    if console.is_data:
        console.data(asdict(result))
    else:
        console.items(result.hosts, columns=_COLUMNS, data=lambda host: {"name": host.label})
    if keep:
        console.tell(f"workload '{result.workload}' is kept")
    failed = [host for host in result.hosts if host.passed is False]
    if failed:
        labels = ", ".join(f"{host.label} on {host.node or 'no node'}" for host in failed[:3])
        more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
        raise XpkError(
            f"{len(failed)} of {counted(len(result.hosts), 'host')} failed: {labels}{more}",
            hint="`xpk docs preflight` explains each check",
        )
    if not result.passed:
        raise XpkError(
            "not all hosts were checked", hint="run the command again; with --keep, `xpk workload logs` shows more"
        )
    console.tell(f"all {counted(len(result.hosts), 'host')} passed")


def _teller(console: Console) -> Callable[[WorkloadStatus], None]:
    last: list[str] = []

    def tell(status: WorkloadStatus) -> None:
        text = f"{status.name}: {status.phase}, {status.reason}"
        if last[-1:] != [text]:
            last.append(text)
            console.tell(f" • {text}")

    return tell
