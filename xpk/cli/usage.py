"""`xpk usage`: who used the chips of a cluster, and what was lost."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from xpk.api.text import counted
from xpk.cli import complete
from xpk.cli.google_xpk import ClusterCommand
from xpk.cli.options import cluster_option
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console, duration, echo
from xpk.cli.terminal.tables import Column
from xpk.cost import LIST
from xpk.jobs.usage.figures import COLUMNS, CapacityUse, Usage, UsageRow, parse_columns
from xpk.jobs.usage.reading import Source
from xpk.model.durations import parse_since
from xpk.model.errors import Problems, XpkError
from xpk.model.usage import ChipHourPrice
from xpk.usage import trace_of, usage_of, usage_source

_FORMATS = ("table", "csv", "json", "yaml")
_AMOUNTS = (
    Column("HELD", lambda row: _amount(row.held_chip_hours)),
    Column("PRODUCTIVE", lambda row: _share(row.productive_chip_hours, row.held_chip_hours)),
    Column("LOST", lambda row: _amount(row.lost_chip_hours)),
    Column("QUEUED", lambda row: _amount(row.queued_chip_hours), drop=2),
    Column("PREEMPTIONS", lambda row: "-" if row.preemptions is None else row.preemptions, drop=3),
    Column("PREEMPTION LOSS", lambda row: _amount(row.preemption_chip_hours), drop=3),
)
_COST = Column("COST", lambda row: "-" if row.cost is None else f"{row.cost:,.2f}")
_QUOTAS = (
    Column("QUEUE", lambda row: row.queue, cut=16),
    Column("QUOTA", lambda row: _amount(row.quota_chip_hours)),
    Column("HELD", lambda row: _amount(row.held_chip_hours)),
    Column("IDLE QUOTA", lambda row: _share(row.idle_quota_chip_hours, row.quota_chip_hours)),
)


class _Prices(click.Path):
    """The file of a price table, or `list`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == LIST else super().convert(value, param, ctx)


@click.command(cls=ClusterCommand)
@click.option(
    "--since", default="7d", show_default=True, metavar="TIME", help="Begin: 2h or 7d ago, or an RFC 3339 time."
)
@click.option("--until", metavar="TIME", help="End, as for --since. [default: now]")
@click.option(
    "--by",
    default="team",
    show_default=True,
    metavar="COLUMNS",
    shell_complete=complete.usage_columns,
    help="Columns of the rows: team,user,workload,cause.",
)
@click.option(
    "--prices",
    type=_Prices(exists=True, dir_okay=False),
    metavar="FILE",
    help="Price table in YAML, as for `xpk cluster create`, or `list` for list prices. "
    "[default: list prices if the cluster has a region]",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Instead, write the workloads of the interval to this file, for `xpk queue simulate --replay`.",
)
@cluster_option
@click.option("-o", "--output", type=click.Choice(_FORMATS), help="Output format. [default: table]")
@click.pass_obj
def usage(
    console: Console,
    since: str,
    until: str | None,
    by: str,
    prices: str | None,
    trace: Path | None,
    cluster: str | None,
    output: str | None,
) -> None:
    """Show who used the chips of a cluster, and what was lost, in chip-hours.

    A chip that a workload holds is either productive or lost to a cause. Held and free chips are the capacity.
    """
    problems, now = Problems(), datetime.now(UTC)
    begin = problems.read(None, parse_since, since)
    end = problems.read(None, parse_since, until, "--until")
    columns = problems.read((), parse_columns, by)
    if begin and begin >= (end or now):
        problems.add(f"--since '{since}' must be before {'--until' if end else 'now'}", hint="use 2h or 7d")
    if trace and output:
        problems.add("--trace excludes --output: the file has its own format", hint="use one of them")
    problems.check("the request is invalid", hint="`xpk usage --help`")
    console, source = console.choosing(output), usage_source(the_cluster(cluster))
    if trace:
        _write_trace(console, source, trace, begin, end)
        return
    used = usage_of(source, since=begin, until=end, by=columns, prices=prices)
    for problem in used.problems:
        console.warn(problem)
    if console.is_data:
        console.data(asdict(used))
    elif console.output == "csv":
        echo(_csv(used), nl=False)
        for line in _price_lines(used):
            console.tell(line)
    else:
        echo(_text(console, used, has_cost=bool(used.prices)))


def _write_trace(console: Console, source: Source, file: Path, since: datetime | None, until: datetime | None) -> None:
    """Write a trace, and tell what it assumes."""
    trace, problems = trace_of(source, since=since, until=until)
    try:
        file.write_text("".join(f"{line}\n" for line in trace.lines), encoding="utf-8")
    except OSError as error:
        raise XpkError(f"cannot write {file}: {error.strerror}", hint="--trace elsewhere") from error
    for problem in problems:
        console.warn(problem)
    for line in trace.assumptions:
        console.tell(f" • {line}")
    console.done(f"Wrote {counted(len(trace.lines), 'workload')} to {file}")


def _text(console: Console, used: Usage, *, has_cost: bool) -> str:
    amounts = (*_AMOUNTS, *([_COST] if has_cost else []))
    rows = console.table(used.rows, [*map(_key_column, used.by), *amounts])
    parts = [rows or "no workload held or requested chips", _capacity_lines(used, has_cost=has_cost)]
    if "team" in used.by and any(row.quota_chip_hours for row in used.quotas):
        parts.append(console.table([row for row in used.quotas if row.quota_chip_hours], _QUOTAS))
    return "\n\n".join(parts)


def _key_column(name: str) -> Column:
    return Column(name.upper(), lambda row: getattr(row, name) or "-", cut=16)


def _capacity_lines(used: Usage, *, has_cost: bool) -> str:
    capacity, total = used.capacity, used.total
    lines = [
        f"chip-hours from {used.since} to {used.until}",
        f"  capacity  {_amount(capacity.capacity_chip_hours)}",
        f"  held      {_share(capacity.held_chip_hours, capacity.capacity_chip_hours)}, "
        f"of which {_share(total.productive_chip_hours, total.held_chip_hours)} productive",
        f"  free      {_share(capacity.free_chip_hours, capacity.capacity_chip_hours)}{_free_details(capacity)}",
    ]
    if has_cost:
        lines.append(f"  cost      {_dollars(capacity.cost)}, of which {_dollars(total.cost)} for held chips")
        lines += [f"  price     {line}" for line in _price_lines(used)]
    if used.unrecorded_seconds >= 1:
        lines.append(f"  the capacity of {duration(used.unrecorded_seconds)} is not recorded")
    return "\n".join(lines)


def _price_lines(used: Usage) -> list[str]:
    """Return a line for the price of each accelerator family, with its source and date."""
    return [
        f"{price.family}: no price known{_in_region(price)}"
        if price.dollars is None
        else f"{price.family}: {price.dollars:g} US dollars a chip-hour on demand{_in_region(price)} "
        f"({'' if price.confirmed else 'unconfirmed, '}{price.as_of}: {price.source})"
        for price in used.prices
    ]


def _in_region(price: ChipHourPrice) -> str:
    return f" in {price.region}" if price.region else ""


def _free_details(capacity: CapacityUse) -> str:
    parts = []
    if capacity.free_while_queued_chip_hours:
        parts.append(f"{_amount(capacity.free_while_queued_chip_hours)} while workloads were queued")
    if capacity.out_of_service_chip_hours:
        parts.append(f"{_amount(capacity.out_of_service_chip_hours)} out of service")
    return f", of which {' and '.join(parts)}" if parts else ""


def _csv(used: Usage) -> str:
    """Return the rows as CSV: the columns of --by, then the amounts; an unknown value is empty."""
    text = io.StringIO()
    fields = [name for name in UsageRow.__dataclass_fields__ if name in used.by or name not in COLUMNS]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows([getattr(row, name) for name in fields] for row in used.rows)
    return text.getvalue()


def _amount(chip_hours: float) -> str:
    return f"{chip_hours:,.1f}" if chip_hours >= 10 or not chip_hours else f"{chip_hours:.3f}"


def _share(part: float, whole: float) -> str:
    return f"{_amount(part)} ({part / whole:.0%})" if whole else _amount(part)


def _dollars(cost: float | None) -> str:
    return "unknown" if cost is None else f"{cost:,.2f} US dollars"
