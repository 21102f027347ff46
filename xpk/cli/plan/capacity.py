"""`xpk plan capacity`: slices that train a number of tokens within a deadline and a budget."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import click

from xpk.cli import complete
from xpk.cli.forecast import interval
from xpk.cli.google_xpk import WorkloadCommand
from xpk.cli.options import output_option
from xpk.cli.plan.goodput import price_options
from xpk.cli.terminal.output import Console, duration, echo
from xpk.cli.terminal.tables import Column, wrapped
from xpk.cli.workload.create import print_notices
from xpk.jobs.create.trainer_preflight import InProcessRunner
from xpk.jobs.search.choices import Choice
from xpk.model import names
from xpk.model.errors import Problems, UsageError
from xpk.planning.capacity import MAX_CHIPS, MAX_TOKENS, CapacitySearch, search_capacity
from xpk_shared.goodput.failures import PRIOR_MTBF

_ABOVE_ZERO = click.FloatRange(min=0, min_open=True, max=1e30)
_COUNT = click.IntRange(1, 10**9)


@click.command(cls=WorkloadCommand)
@click.option(
    "--config", required=True, metavar="NAME", help="Trainer configuration: tiny, 8b, 16b, 32b, 64b, 128b or a file."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a setting, which is then not searched; may be repeated.",
)
@click.option(
    "--tokens",
    type=click.FloatRange(1, MAX_TOKENS),
    required=True,
    metavar="NUMBER",
    help="Tokens to train, such as 1e12.",
)
@click.option("--by", metavar="DATE", help="Latest end, such as 2027-03-01 or 2027-03-01T12:00Z.")
@click.option("--start", metavar="DATE", help="Start of the run. [default: now]")
@click.option("--budget", type=click.FloatRange(0, 1e15), metavar="DOLLARS", help="Most US dollars of the whole run.")
@click.option(
    "--tpu-type",
    "--device-type",
    "accelerator_types",
    multiple=True,
    metavar="TYPE",
    shell_complete=complete.accelerator_types,
    help="Accelerator type to search; may be repeated. [default: v5litepod, v5p and v6e of 16 to 1024 chips]",
)
@click.option(
    "--num-slices",
    type=click.IntRange(1, 4096),
    multiple=True,
    metavar="N",
    help="Number of slices to search; may be repeated. [default: powers of 2 up to 256]",
)
@click.option("--max-chips", type=_COUNT, default=MAX_CHIPS, show_default=True, metavar="N", help="Most chips.")
@click.option("--max-global-batch", type=_COUNT, metavar="N", help="Most examples in a step. [default: unlimited]")
@click.option("--int8", is_flag=True, help="Search int8 products, too; they change the results.")
@click.option(
    "--rank-by",
    type=click.Choice(("bound", "expected")),
    default="bound",
    show_default=True,
    help="Time of a step that choices are ranked and limited by: the lower bound, or the expected time.",
)
@click.option("--price", multiple=True, metavar="FAMILY=DOLLARS", help="Price of a chip-hour; may be repeated.")
@click.option(
    "--spot-price", multiple=True, metavar="FAMILY=DOLLARS", help="Search spot slices at this price; may be repeated."
)
@price_options
@click.option(
    "--mtbf-chip-hours",
    type=_ABOVE_ZERO,
    default=PRIOR_MTBF,
    show_default=True,
    metavar="HOURS",
    help="Chip-hours for each failure.",
)
@click.option("--spot-mtbf-chip-hours", type=_ABOVE_ZERO, metavar="HOURS", help="The same for spot slices.")
@click.option(
    "--verify", type=click.IntRange(1, 100), metavar="N", help="Compile the first N choices with libtpu; takes minutes."
)
@click.option(
    "--cluster",
    metavar="NAME",
    shell_complete=complete.clusters,
    help="Add the estimated start of each choice in a queue of this cluster.",
)
@click.option(
    "--queue",
    default=names.QUEUE,
    show_default=True,
    metavar="NAME",
    shell_complete=complete.queues,
    help="That queue.",
)
@output_option
@click.pass_context
def capacity(ctx: click.Context, /, **options: Any) -> None:
    """Choose slices, mesh, batch and rematerialization for a number of tokens.

    Shows the choices of which no other is as fast and as cheap, with the commands that create them. Times are lower
    bounds that were never measured on a TPU: they rank choices and promise nothing.
    """
    console: Console = ctx.obj.choosing(options["output"])
    dates, prices = _dates_and_prices(options)
    search = search_capacity(
        options["config"],
        options["tokens"],
        settings=options["settings"],
        by=dates["by"],
        budget=options["budget"],
        start=dates["start"],
        accelerator_types=options["accelerator_types"],
        num_slices=options["num_slices"],
        max_chips=options["max_chips"],
        max_global_batch=options["max_global_batch"],
        int8=options["int8"],
        rank_by=options["rank_by"],
        price=prices["price"],
        spot_price=prices["spot_price"],
        region=options["region"],
        prices=options["prices"],
        mtbf_chip_hours=options["mtbf_chip_hours"],
        spot_mtbf_chip_hours=options["spot_mtbf_chip_hours"],
        verify=options["verify"] or 0,
        cluster=options["cluster"],
        queue=options["queue"],
        runner=InProcessRunner(),
        on_progress=print_notices(console),
    )
    if console.is_data:
        console.data(dataclasses.asdict(search))
    elif console.output == "name":
        for choice in search.choices:
            echo(f"{choice.num_slices}x{choice.tpu_type}")
    else:
        _show(console, search)


def _dates_and_prices(options: dict[str, Any]) -> tuple[dict[str, datetime | None], dict[str, dict[str, float]]]:
    """Return the values of dates and of prices by family. Raises UsageError with all that are invalid."""
    problems = Problems()
    dates = {name: problems.read(None, _date, options[name], f"--{name}") for name in ("by", "start")}
    prices: dict[str, dict[str, float]] = {"price": {}, "spot_price": {}}
    for name, values in prices.items():
        for text in options[name]:
            values |= problems.read({}, _price, text, f"--{name.replace('_', '-')}")
    problems.check("invalid options", hint="`xpk plan capacity --help`")
    return dates, prices


def _date(text: str | None, flag: str) -> datetime | None:
    """Return a date in UTC unless it names another zone. Raises UsageError."""
    if text is None:
        return None
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{flag} '{text}' is not a date", hint="use 2027-03-01 or 2027-03-01T12:00Z") from None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _price(text: str, flag: str) -> dict[str, float]:
    family, _, dollars = text.partition("=")
    try:
        return {family: float(dollars)}
    except ValueError:
        raise UsageError(f"{flag} '{text}' is not FAMILY=DOLLARS", hint="write it as v5p=4.2") from None


_COLUMNS = (
    Column("SLICES", lambda choice: f"{choice.num_slices} x {choice.tpu_type}{' spot' if choice.spot else ''}"),
    Column("CHIPS", lambda choice: f"{choice.chips:,}", drop=1),
    Column("MESH", lambda choice: _mesh(choice), drop=3),
    Column("BATCH", lambda choice: f"{choice.global_batch:,}", drop=2),
    Column("BOUND", lambda choice: duration(choice.days * 86400)),
    Column("EXPECTED", lambda choice: duration(choice.expected_days * 86400)),
    Column("GOODPUT", lambda choice: f"{choice.goodput:.1%}", drop=4),
    Column("DOLLARS", lambda choice: f"{choice.dollars:,.0f}"),
    Column("EXPECTED DOLLARS", lambda choice: f"{choice.expected_dollars:,.0f}"),
)
_START = Column("START", lambda choice: _start(choice))
_VERIFIED = Column("COMPILER", lambda choice: _verdict(choice))
_WIDE = (
    Column("SETTINGS", lambda choice: " ".join(choice.settings)),
    Column("GIB", lambda choice: f"{choice.peak_gib:.1f} of {choice.hbm_gib:g}"),
    Column("STEP BOUND", lambda choice: f"{choice.step_seconds:.3g} s, {choice.bound_by}"),
)


def _mesh(choice: Choice) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in choice.mesh.items() if size > 1) or "1 chip"


def _start(choice: Choice) -> str:
    if choice.start is None or choice.start.expected is None:
        return "beyond the quota" if choice.start and choice.start.is_beyond_quota else "unknown"
    return interval(choice.start)


def _verdict(choice: Choice) -> str:
    if choice.fits_verified is None:
        return "not asked"
    return f"{'fits' if choice.fits_verified else 'does not fit'}, {choice.verified_peak_gib:.1f} GiB"


def _show(console: Console, search: CapacitySearch) -> None:
    """Print the choices for people, and the commands of the first one, or of all with -o wide."""
    is_verified = any(choice.fits_verified is not None for choice in search.choices)
    wide = console.output == "wide"
    reasons = [choice.start.reason for choice in search.choices if choice.start and choice.start.reason]
    has_starts = any(choice.start for choice in search.choices)
    more = (*((_START,) if has_starts else ()), *((_VERIFIED,) if is_verified else ()), *(_WIDE if wide else ()))
    echo(console.table(search.choices, (*_COLUMNS, *more)))
    echo()
    ranked = "lower bound of the time" if search.rank_by == "bound" else "expected time"
    echo(f"{search.config}, {search.tokens:g} tokens; {search.candidates:,} candidates, ranked by the {ranked}")
    for note in (*search.notes, *dict.fromkeys(reasons)):
        echo(wrapped(f"Note: {note}", console.width, 6))
    for choice in search.choices if wide else search.choices[:1]:
        echo()
        echo(f"{choice.num_slices} x {choice.tpu_type}, ends on {choice.end} at the earliest:")
        for command in choice.commands:
            echo(f"  {command}")
    if not wide and len(search.choices) > 1:
        console.tell("  next: -o wide shows the commands of all choices")
