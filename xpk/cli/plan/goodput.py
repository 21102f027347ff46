"""`xpk plan goodput`: goodput, checkpoint intervals, spares and cost of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from xpk.cli import complete
from xpk.cli.google_xpk import WorkloadCommand
from xpk.cli.options import (
    accelerator_option,
    cluster_option,
    is_typed,
    namespace_option,
    output_option,
    output_root_option,
)
from xpk.cli.target import ROOT_KEY, the_cluster
from xpk.cli.terminal.output import Console, duration, echo
from xpk.cli.terminal.tables import Column, wrapped
from xpk.client import Cluster
from xpk.jobs.create.trainer_preflight import InProcessRunner
from xpk.jobs.forecast.assumptions import Assumptions
from xpk.jobs.forecast.forecast import GoodputForecast, HandlingForecast
from xpk.model.durations import parse_duration
from xpk.model.errors import UsageError
from xpk.planning.goodput import TPU_TYPE, forecast_goodput
from xpk.planning.prices import REGION
from xpk_shared.goodput.failures import PRIOR_MTBF

Command = TypeVar("Command", bound=Callable[..., Any])
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True, max=1e15)


def assumption_options(command: Command) -> Command:
    """Add an option for each assumption, in their order."""
    for field in reversed(dataclasses.fields(Assumptions)):
        is_share, text = field.metadata["is_share"], field.metadata["help"]
        default = "[default: measured]" if not is_share else "[default: see -o wide]"
        command = click.option(
            field.metadata["flag"],
            field.name,
            type=click.FloatRange(0, 1) if is_share else None,
            metavar="SHARE" if is_share else "TIME",
            help=f"{text} {default}",
        )(command)
    return command


def price_options(command: Command) -> Command:
    """Add the options of list prices."""
    text = f"Region of the list prices. [default: {REGION}]"
    command = click.option("--region", default=REGION, metavar="REGION", help=text)(command)
    kind = click.Path(path_type=Path, exists=True, dir_okay=False)
    return click.option("--prices", type=kind, metavar="FILE", help="Price table to use instead of the built-in one.")(
        command
    )


@click.command(cls=WorkloadCommand)
@click.option("--config", help="Trainer configuration: tiny, 8b, 16b, 32b, 64b, 128b or a YAML file.")
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a setting; may be repeated."
)
@accelerator_option(f"Accelerator type. [default: {TPU_TYPE}]")
@click.option("--num-slices", type=click.IntRange(1, 4096), default=1, show_default=True, help="Number of slices.")
@click.option(
    "--min-slices",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of elastic slices that continue. [default: more than half]",
)
@click.option("--step-seconds", type=_ABOVE_ZERO, metavar="SECONDS", help="Time of a step. [default: estimated]")
@click.option(
    "--from-workload",
    metavar="NAME",
    shell_complete=complete.workloads,
    help="Take slices, durations and failures from a run of the bundled trainer.",
)
@click.option(
    "--mtbf-chip-hours",
    type=_ABOVE_ZERO,
    default=PRIOR_MTBF,
    show_default=True,
    metavar="HOURS",
    help="Chip-hours for each failure; with --from-workload, the prior that its restarts update.",
)
@click.option("--price", type=click.FloatRange(0, 1e9), metavar="DOLLARS", help="Price of a chip for an hour.")
@price_options
@assumption_options
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the simulation.")
@cluster_option
@namespace_option
@output_root_option
@output_option
@click.pass_context
def goodput(ctx: click.Context, /, cluster: str | None, namespace: str, **options: Any) -> None:
    """Forecast goodput, the best checkpoint intervals, spare slices and cost of a run.

    Compares new pods, restarts in place and elastic slices. Creates nothing; without --from-workload no cluster is
    needed.
    """
    console: Console = ctx.obj.choosing(options["output"])
    handle = None
    if options["from_workload"]:
        _check_of_run()
        workload_options = {"output_root": ctx.meta.get(ROOT_KEY)}
        handle = Cluster(the_cluster(cluster)).workload(options["from_workload"], namespace, **workload_options)
    forecast = forecast_goodput(
        config=options["config"],
        settings=options["settings"],
        accelerator_type=options["accelerator_type"] or TPU_TYPE,
        num_slices=options["num_slices"],
        min_slices=options["min_slices"],
        step_seconds=options["step_seconds"],
        workload=handle,
        mtbf_chip_hours=options["mtbf_chip_hours"],
        assumptions=_assumptions(options),
        price=options["price"],
        region=options["region"],
        prices=options["prices"],
        seed=options["seed"],
        runner=InProcessRunner(),
    )
    if console.is_data:
        console.data(dataclasses.asdict(forecast))
    elif console.output == "name":
        echo(forecast.best)
    else:
        _show(console, forecast)


def _check_of_run() -> None:
    """Raise UsageError for options that a run determines."""
    flags = {"config": "--config", "settings": "--set", "accelerator_type": "--tpu-type", "num_slices": "--num-slices"}
    problems = [f"{flag} and --from-workload exclude each other" for name, flag in flags.items() if is_typed(name)]
    if problems:
        raise UsageError(problems[0], problems=problems, hint="omit --from-workload, or the other options")


def _assumptions(options: dict[str, Any]) -> dict[str, float]:
    """Return the assumptions that were given, in seconds and shares."""
    values = {}
    for field in dataclasses.fields(Assumptions):
        value = options[field.name]
        if isinstance(value, str):
            value = parse_duration(value, field.metadata["flag"])
        if value is not None:
            values[field.name] = value
    return values


_ASSUMPTIONS = (
    Column("ASSUMPTION", lambda a: a.name),
    Column("VALUE", lambda a: f"{a.value:g}"),
    Column("SOURCE", lambda a: a.source, wrap=True),
)


def _show(console: Console, forecast: GoodputForecast) -> None:
    """Print a forecast for people."""
    echo(
        f"{forecast.name} on {forecast.num_slices} x {forecast.tpu_type}, {forecast.chips:,} chips, "
        f"{forecast.step_seconds:.3g} s a step ({forecast.step_source})"
    )
    low, high = forecast.mtbf_chip_hours_low, forecast.mtbf_chip_hours_high
    echo(
        f"{forecast.failures_per_day:.3g} failures a day: one in {_hours(forecast.mtbf_chip_hours)} chip-hours "
        f"(90% interval {_hours(low)} to {_hours(high)})"
    )
    echo()
    echo(console.table(forecast.handlings, _columns(forecast)))
    echo()
    low, high = forecast.goodput_low, forecast.goodput_high
    echo(f"Best: {forecast.best}, with a goodput of {low:.1%} to {high:.1%} within the interval.")
    echo(f"Settings: {' '.join(forecast.settings)}")
    echo(_auto(forecast.handlings[0]))
    for note in forecast.notes:
        echo(wrapped(f"Note: {note}", console.width, 6))
    if forecast.price_source:
        echo(f"Price: {forecast.dollars_per_chip_hour:g} US dollars a chip-hour ({forecast.price_source})")
    if console.output == "wide":
        echo()
        echo(console.table(forecast.assumptions, _ASSUMPTIONS))
    else:
        console.tell("  next: -o wide shows the assumptions and their sources; each has an option")


def _auto(best: HandlingForecast) -> str:
    """Return what a run with these measurements chooses itself."""
    local = f" and checkpoint.local_every=auto {best.auto_local_every}" if best.auto_local_every else ""
    return f"Automatic: checkpoint.every=auto would choose {best.auto_every}{local}, and adapt to the run."


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _columns(forecast: GoodputForecast) -> tuple[Column, ...]:
    def interval(steps: int, seconds: float) -> str:
        return f"{steps} ({duration(seconds)})" if steps else "-"

    def interval_of(one: HandlingForecast) -> str:
        return interval(one.every, one.every_seconds)

    cost = (
        Column("DOLLARS/DAY", lambda one: f"{one.dollars_per_day:,.0f}"),
        Column("LOST", lambda one: f"{one.dollars_lost_per_day:,.0f}", drop=1),
    )
    return (
        Column("FAILURE HANDLING", lambda one: one.handling),
        Column("GOODPUT", lambda one: f"{one.goodput:.1%}"),
        Column("SIMULATED", lambda one: f"{max(0, one.simulated.low):.1%} to {one.simulated.high:.1%}", drop=2),
        Column("EVERY", interval_of),
        Column("LOCAL EVERY", lambda one: interval(one.local_every, one.local_every_seconds)),
        Column("SPARES", lambda one: one.spares),
        *(cost if forecast.price_source else ()),
    )
