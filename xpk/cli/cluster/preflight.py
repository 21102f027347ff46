"""`xpk cluster preflight`: check the hosts of free slices."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from xpk.api.text import counted
from xpk.cli import complete
from xpk.cli.cluster.check_options import check_options, read_options
from xpk.cli.google_xpk import ClusterCommand
from xpk.cli.options import accelerator_option, context_option, name_argument, output_option
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console
from xpk.cli.terminal.tables import Column
from xpk.model.errors import UsageError

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
    value = results[0].value
    return f"{value:.3g}" if value is not None and results[0].unit == "GB/s" else "ok"


def _column(check: str) -> Column:
    unit = " GB/S" if check in ("ici", "dcn") else ""
    return Column(check.upper() + unit, lambda host: _cell(host, check))


COLUMNS = (
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
    "nodes",
    multiple=True,
    metavar="NODE",
    shell_complete=complete.nodes,
    help="Check only the slice of NODE, even if it is quarantined; may be repeated.",
)
@click.option("--keep", is_flag=True, help="Keep the workload and its output.")
@check_options
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
    nodes: tuple[str, ...],
    keep: bool,
    output: str | None,
    **options: Any,
) -> None:
    """Check chips, memory, network, clocks and disks of all hosts of free slices, or of the slices of --node.

    The checks run as a workload of the lowest priority, which is deleted afterwards. Exit code 1 if a host fails.
    """
    from xpk.checks import check_hosts, failure_of  # bring what creates workloads, which other commands do not need
    from xpk.client import Cluster

    console = console.choosing(output)
    if nodes and (num_slices or accelerator_type):
        raise UsageError(f"--node and {'--num-slices' if num_slices else '--tpu-type'} exclude each other: choose one")
    arguments = read_options(options, console)
    result = check_hosts(
        Cluster(the_cluster(name or name_flag)),
        num_slices,
        accelerator_type=accelerator_type,
        node=nodes,
        keep=keep,
        **arguments,
    )
    if console.is_data:
        console.data(asdict(result))
    else:
        console.items(result.hosts, columns=COLUMNS, data=lambda host: {"name": host.label})
    if keep:
        console.tell(f"workload '{result.workload}' is kept")
    if failure := failure_of(result):
        raise failure
    console.tell(f"all {counted(len(result.hosts), 'host')} passed")
