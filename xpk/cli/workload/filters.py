"""Filters of workloads: `--filter-by-status`, `--filter-by-job` and `--selector`."""

from __future__ import annotations

from collections.abc import Iterable

import click

from xpk.cli.options import Command
from xpk.model.errors import UsageError
from xpk.model.status import Phase, WorkloadStatus

FILTERS = {
    "EVERYTHING": frozenset(Phase),
    "FINISHED": frozenset({Phase.SUCCEEDED, Phase.FAILED}),
    "RUNNING": frozenset({Phase.STARTING, Phase.RUNNING, Phase.RESTARTING}),
    "QUEUED": frozenset({Phase.QUEUED}),
    "FAILED": frozenset({Phase.FAILED}),
    "SUCCESSFUL": frozenset({Phase.SUCCEEDED}),
}


def filter_options(command: Command) -> Command:
    """Add the filters of Google's xpk."""
    text = "Select only workloads whose names contain TEXT."
    command = click.option("--filter-by-job", metavar="TEXT", help=text)(command)
    command = click.option(
        "-l",
        "--selector",
        metavar="KEY=VALUE",
        callback=_labels,
        help="Select only workloads with these labels, as KEY=VALUE,...",
    )(command)
    statuses = click.Choice(tuple(FILTERS), case_sensitive=False)
    return click.option("--filter-by-status", type=statuses, help="Select only workloads in this state.")(command)


def filtered(statuses: Iterable[WorkloadStatus], status: str | None, job: str | None) -> list[WorkloadStatus]:
    """Return the workloads that pass both filters; an absent filter passes all."""
    return [workload for workload in statuses if is_match(workload, phase=status, text=job)]


def is_match(status: WorkloadStatus, *, phase: str | None, text: str | None) -> bool:
    """Return whether a workload passes both filters; an absent filter passes all."""
    return status.phase in FILTERS[(phase or "EVERYTHING").upper()] and (text or "") in status.name


def _labels(_ctx: click.Context, _param: click.Parameter, text: str | None) -> dict[str, str]:
    """Return the labels of `a=b,c=d`. Raises UsageError for other selectors, which local clusters do not support."""
    labels = {}
    for part in filter(None, (text or "").split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key or key.endswith("!"):
            raise UsageError(f"invalid selector '{part}'", hint="--selector KEY=VALUE, or KEY=VALUE,KEY=VALUE")
        labels[key.strip()] = value.removeprefix("=").strip()
    return labels
