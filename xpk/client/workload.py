"""A workload on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xpk.jobs import lifecycle
from xpk.jobs import logs as logging
from xpk.jobs.output.folder import Progress
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.simulation.live import with_start
from xpk.jobs.status import reader
from xpk.jobs.status.goodput import progress_of, with_goodput
from xpk.jobs.status.in_place import with_restarts_in_place
from xpk.model import names
from xpk.model.status import WorkloadStatus

if TYPE_CHECKING:
    from xpk.client.cluster import Cluster


class WorkloadHandle:
    """A workload on a cluster. Every method reads the cluster again.

    Raises NotFoundError if the workload does not exist.
    """

    def __init__(
        self, cluster: Cluster, name: str, namespace: str = "default", *, output_root: str | None = None
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.namespace = namespace
        self.roots = OutputRoots(lambda: cluster.target, output_root)

    def __repr__(self) -> str:
        """Return the expression that makes it."""
        return f"{self.cluster!r}.workload({self.name!r}, {self.namespace!r})"

    def status(self) -> WorkloadStatus:
        """Return the status, with restarts, events and, while it is queued, its estimated start."""
        status, events = reader.inspect(self.cluster.api, self.name, self.namespace, self.roots)
        return replace(with_start(self.cluster.api, status, self.roots), events=events)

    def progress(self) -> Progress | None:
        """Return the newest step that the workload logged, with the run's goodput and end; None before the first.

        Raises ConflictError if the output folder is not the workload's own, XpkError if it cannot be read.
        """
        status = reader.find(self.cluster.api, self.name, self.namespace)
        folder = self.roots.to_read(status)
        progress = progress_of(folder, status) if folder else None
        return progress and with_goodput(progress, folder, status)

    def wait(
        self,
        timeout: float | None = None,
        *,
        on_progress: Callable[[WorkloadStatus], None] = lambda status: None,
        check: bool = True,
    ) -> WorkloadStatus:
        """Wait for the end and return the status; `on_progress` gets each status on the way.

        Raises TimedOutError after `timeout` seconds, and WorkloadFailedError for an image that cannot be pulled or,
        unless `check` is false, for a workload that failed.
        """
        status = lifecycle.wait(
            self.cluster.api,
            self.name,
            self.namespace,
            timeout=timeout,
            tell=on_progress,
            where=self._where,
            must_start=True,
        )
        if check:
            lifecycle.check_succeeded(status, where=self._where)
        return status

    def logs(
        self,
        *,
        follow: bool = False,
        previous: bool = False,
        slice: int | None = None,
        host: int | None = None,
        since: datetime | None = None,
        tail: int | None = None,
        grep: str | None = None,
    ) -> Iterator[logging.HostLine]:
        """Return the lines of all hosts of the newest attempt, merged by time; with `follow`, until the workload ends.

        `previous` reads the attempt before, where it is kept; `tail` counts lines of each host; `grep` is a regular
        expression. Raises UsageError for a bad expression or more than 128 hosts, XpkError if no host has a log yet.
        """
        query = logging.LogQuery(slice=slice, host=host, since=since, tail=tail, grep=grep)
        if follow:
            return logging.follow_logs(self.cluster.api, self.name, self.namespace, query)
        return logging.read_logs(self.cluster.api, self.name, self.namespace, query, previous=previous)

    def suspend(self) -> None:
        """Stop the hosts and give the slices back until `resume`. Raises ConflictError if the workload has ended."""
        lifecycle.set_active(self.cluster.api, self.name, self.namespace, active=False)

    def resume(self) -> None:
        """Queue a suspended workload again. Raises ConflictError if it has ended."""
        lifecycle.set_active(self.cluster.api, self.name, self.namespace, active=True)

    def delete(
        self,
        *,
        with_output: bool = False,
        grace_seconds: int | None = None,
        wait: bool = True,
        timeout: float = 120.0,
        force: bool = False,
    ) -> None:
        """Delete the workload and wait for its last host; its output stays unless `with_output` is set.

        Raises ConflictError for a workload of another tool, unless `force` is set, and for output that is not below
        the cluster's root; TimedOutError if hosts still run after `timeout` seconds.
        """
        self.cluster.delete_workloads(
            self.name,
            namespace=self.namespace,
            with_output=with_output,
            output_root=self.roots.stated,
            grace_seconds=grace_seconds,
            wait=wait,
            timeout=timeout,
            force=force,
        )

    def report(self, path: str | Path | None = None) -> dict[str, Any]:
        """Return goodput, restarts and step times of a run that logs its steps; write the page to `path` if given.

        Raises NotFoundError before the first step, XpkError if the output cannot be read or the page cannot be written.
        """
        from xpk.jobs.report import figures as reporting  # brings the charts, which no other method needs

        status = with_restarts_in_place(reader.find(self.cluster.api, self.name, self.namespace), self.roots)
        account = reporting.account(status, self.cluster.name, self.roots)
        if path is not None:
            reporting.write_page(account, Path(path))
        return account.figures

    @property
    def _where(self) -> str:
        return names.location_flags(self.cluster.name, self.namespace)
