"""`xpk queue simulate`: estimated starts of all queued workloads, also under other quotas."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from xpk.capacity.provider import provider_of
from xpk.cli.forecast import interval
from xpk.cli.options import cluster_option, output_option, output_root_option
from xpk.cli.target import output_roots, the_cluster
from xpk.cli.terminal.help import Command
from xpk.cli.terminal.output import Console, duration, echo
from xpk.cli.terminal.tables import Column
from xpk.jobs.simulation.live import QueueSimulation
from xpk.jobs.simulation.what_if import WhatIf
from xpk.model import names
from xpk.model.durations import parse_duration
from xpk.model.errors import UsageError
from xpk.model.forecast import QueueForecast

_COLUMNS = (
    Column("WORKLOAD", lambda w: f"{w.namespace}/{w.name}" if w.namespace else w.name),
    Column("QUEUE", lambda w: w.queue, drop=2),
    Column("PRIORITY", lambda w: _priority(w.priority), drop=3),
    Column("STARTS", interval),
    Column("PREEMPTS", lambda w: ", ".join(w.preempts) or "-", drop=1),
    Column("RESTS ON", lambda w: "; ".join(w.rests_on) or w.reason or "-", wrap=True),
)
_PREEMPTED = (
    Column("PREEMPTED", lambda p: p.workload),
    Column("BY", lambda p: p.by),
    Column("AT", lambda p: p.time),
    Column("RUNS AGAIN", lambda p: p.resumes or "-"),
)
_REPLAYED = (
    Column("QUEUE", lambda q: q.queue),
    Column("WORKLOADS", lambda q: q.workloads),
    Column("STARTED", lambda q: q.started),
    Column("MEAN WAIT", lambda q: _time(q.wait_mean)),
    Column("50%", lambda q: _time(q.wait_50)),
    Column("90%", lambda q: _time(q.wait_90)),
    Column("LONGEST", lambda q: _time(q.wait_max)),
    Column("PREEMPTIONS", lambda q: q.preemptions),
)


@click.command(cls=Command)
@cluster_option
@click.option(
    "--quota",
    metavar="QUEUE=[TYPE=]N",
    multiple=True,
    help="Assume another quota, taken from or given to multislice-queue as `queue create` does.",
)
@click.option("--add-slices", metavar="QUEUE=[TYPE=]N", multiple=True, help="Assume N more slices in a queue.")
@click.option(
    "--add-workload",
    "workloads",
    metavar="name=NAME,slices=N",
    multiple=True,
    help="Assume one more workload; further fields are type, queue, priority and duration.",
)
@click.option(
    "--duration",
    "durations",
    metavar="[NAMESPACE/]NAME=TIME",
    multiple=True,
    help="Total time for which a workload runs; may be repeated.",
)
@click.option(
    "--assume-duration",
    metavar="TIME",
    default="1d",
    show_default=True,
    help="Total time of workloads whose duration is unknown.",
)
@click.option(
    "--replay",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Replay a trace (JSON Lines) under the quotas of the cluster instead of its workloads.",
)
@output_root_option
@output_option
@click.pass_obj
def simulate(console: Console, /, cluster: str | None, **options: Any) -> None:
    """Estimate when queued workloads start, and which are preempted. Nothing is changed.

    The estimates assume that nothing else is submitted. Options change what is simulated:

    \b
      xpk queue simulate --quota red=4 --assume-duration 6h
      xpk queue simulate --add-workload name=big,slices=8,priority=high
    """
    place = the_cluster(cluster)
    problems = list[str]()
    changes = WhatIf(quota=options["quota"], add_slices=options["add_slices"], workloads=options["workloads"])
    stated = {name: seconds for text in options["durations"] for name, seconds in _stated(text, problems)}
    assumed = _seconds(options["assume_duration"], "--assume-duration", problems)
    if options["replay"] and (changes.workloads or stated):
        problems.append("--replay excludes --add-workload and --duration: the file has the workloads")
    if problems:
        raise UsageError(problems[0], problems=problems, hint="see `xpk queue simulate --help`")
    api, roots, console = provider_of(place).connect(place), output_roots(place), console.choosing(options["output"])
    simulation = QueueSimulation(api, roots)
    if options["replay"]:
        forecast = simulation.replay(options["replay"], changes)
    else:
        forecast = simulation.forecast(changes, assumed=assumed, durations=stated)
    for line in (*forecast.refused, *forecast.loops):
        console.warn(line)
    if console.is_data:
        console.data(asdict(forecast))
    elif console.output == "name":
        for item in forecast.pending:
            echo(item.name)
    else:
        _print(console, forecast, place)


def _print(console: Console, forecast: QueueForecast, cluster: str) -> None:
    for line in forecast.changes:
        console.tell(f" • assumed: {line}")
    if forecast.replayed:
        echo(console.table(forecast.replayed, _REPLAYED))
        console.tell(f"from the first submission to the last end: {_time(forecast.replayed_seconds)}")
        return
    if not forecast.pending:
        console.tell(f"no queued workloads on '{cluster}'")
    else:
        echo(console.table(forecast.pending, _COLUMNS))
    if forecast.preemptions:
        echo()
        echo(console.table(forecast.preemptions, _PREEMPTED))
    if forecast.pending:
        console.tell("durations (assumed ones may be half or twice as long), if nothing else is submitted:")
        for name, words in forecast.durations.items():
            console.tell(f"  {name}: {words}")


def _stated(text: str, problems: list[str]) -> list[tuple[str, float]]:
    """Return the workload and the seconds of `NAME=TIME`; nothing, with a problem, if it is invalid."""
    name, separator, time = text.rpartition("=")
    if not separator or not name:
        problems.append(f"--duration '{text}': expected NAME=TIME, such as team-a/big=4h")
        return []
    return [(name, _seconds(time, "--duration", problems))]


def _seconds(text: str, flag: str, problems: list[str]) -> float:
    try:
        seconds = parse_duration(text, flag) or 0.0
        if seconds > 0:
            return seconds
        problems.append(f"{flag} must be longer than 0, got '{text}'")
    except UsageError as error:
        problems.append(error.message)
    return 1.0


def _priority(value: int) -> str:
    return next((name for name, number in names.PRIORITIES.items() if number == value), str(value))


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
