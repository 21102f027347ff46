"""`xpk workload report`: the report page of a run, also beside other runs."""

from __future__ import annotations

from pathlib import Path

import click

from xpk.cli import complete
from xpk.cli.google_xpk import WorkloadCommand
from xpk.cli.options import cluster_option, name_argument, namespace_option, output_option, output_root_option, the_name
from xpk.cli.target import output_roots, the_cluster
from xpk.cli.terminal.output import Console
from xpk.cli.workload.chosen import connect_to_chosen
from xpk.jobs.report import figures
from xpk.jobs.report.comparison import MAX_RUNS
from xpk.jobs.status import reader
from xpk.jobs.status.in_place import with_restarts_in_place
from xpk.model.errors import UsageError


@click.command(cls=WorkloadCommand)
@name_argument("workload")
@cluster_option
@namespace_option
@click.option("--file", type=click.Path(path_type=Path), help="File to write. [default: NAME.html]")
@click.option(
    "--compare",
    "others",
    metavar="NAME",
    multiple=True,
    shell_complete=complete.workloads,
    help="Workload of the same namespace to show beside it; may be repeated.",
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
@click.option("--kill-time", type=float, hidden=True, help="Time at which a drill killed a host, in Unix seconds.")
@output_root_option
@output_option
@click.pass_obj
def report(
    console: Console,
    /,
    name: str | None,
    name_flag: str | None,
    cluster: str | None,
    namespace: str,
    file: Path | None,
    others: tuple[str, ...],
    open_page: bool,
    kill_time: float | None,
    output: str | None,
) -> None:
    """Write a report page about a run: loss, goodput, restarts and a timeline of every host."""
    workload_name, console = the_name("workload", name, name_flag), console.choosing(output)
    is_written = not console.is_data or file is not None or open_page
    _check_comparison(workload_name, others, is_written=is_written)
    place, api = connect_to_chosen(the_cluster(cluster), workload_name, namespace)
    roots = output_roots(place)
    account, *more = (
        figures.account(
            with_restarts_in_place(reader.find(api, one, namespace), roots), place, roots, kill_time=kill_time
        )
        for one in (workload_name, *others)
    )
    if console.is_data:
        console.data(account.figures)
    if not is_written:
        return
    page = figures.write_page(account, file or Path(f"{workload_name}.html"), more)
    address = page.absolute().as_uri()
    console.done(f"report written to {page} ({address})")
    if open_page and click.launch(address):
        console.tell(f"warning: cannot start a browser; open {address}")


def _check_comparison(name: str, others: tuple[str, ...], *, is_written: bool) -> None:
    """Raise UsageError if a run cannot be compared with others."""
    if not others:
        return
    problems = []
    if len({name, *others}) <= len(others):
        problems.append("--compare requires workloads other than the reported one, each once")
    if len(others) >= MAX_RUNS:
        problems.append(f"--compare may be repeated {MAX_RUNS - 1} times, got {len(others)}")
    if not is_written:
        problems.append("--compare is for the page: with --output, it requires --file")
    if problems:
        raise UsageError(problems[0], problems=problems, hint="`xpk workload report --help`")
