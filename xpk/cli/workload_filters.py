"""Which workloads are meant: those that `--filter-by-status` and `--filter-by-job` let through."""

from __future__ import annotations

from collections.abc import Iterable

import click

from xpk.cli.options import Command
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
    """Take the filters of Google's xpk."""
    command = click.option("--filter-by-job", metavar="TEXT", help="Only names that contain this.")(command)
    statuses = click.Choice(tuple(FILTERS), case_sensitive=False)
    return click.option("--filter-by-status", type=statuses, help="Only those that do so now.")(command)


def filtered(found: Iterable[WorkloadStatus], status: str | None, job: str | None) -> list[WorkloadStatus]:
    """Return the workloads that both filters let through; one that was not given lets all through."""
    phases = FILTERS[(status or "EVERYTHING").upper()]
    return [each for each in found if each.phase in phases and (job or "") in each.name]
