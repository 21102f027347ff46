"""Clusters and the workloads on them, each by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xpk.api.base import ObjectApi
from xpk.capacity.options import ProviderOptions
from xpk.capacity.plan.plan import Plan
from xpk.capacity.provider import ClusterInfo, Provider, configured_provider, provider_of
from xpk.client.creation import carry_out, warn
from xpk.cost import price
from xpk.jobs import deletion, lifecycle
from xpk.jobs import logs as logging
from xpk.jobs.create.checks import valid_fields
from xpk.jobs.create.create import read_queue
from xpk.jobs.create.destination import Destination
from xpk.jobs.create.notice import Notice, ignore
from xpk.jobs.create.resolve import with_problems_of
from xpk.jobs.create.submit import submit
from xpk.jobs.create.workload import Workload
from xpk.jobs.deletion import Deletion
from xpk.jobs.host_logs import HostLine, LogQuery
from xpk.jobs.output.folder import Progress
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.placement.moves import Tell, wait_through_moves
from xpk.jobs.placement.placements import placements, placer_of
from xpk.jobs.placement.placer import Placer
from xpk.jobs.status import reader
from xpk.jobs.status.goodput import progress_of, with_goodput
from xpk.jobs.status.in_place import with_local_restarts, with_restarts_in_place
from xpk.model import names
from xpk.model.errors import Problems, UsageError, XpkError
from xpk.model.specs import Target
from xpk.model.status import Phase, WorkloadStatus

if TYPE_CHECKING:  # loaded by the methods that need them
    from xpk.jobs.usage.figures import Usage
    from xpk.jobs.usage.reading import Source
    from xpk.nodes import Nodes


class Cluster:
    """An existing cluster, by its name; the first method that needs it connects.

    `context:NAME` stands for a context of your kubeconfig. `options`: those of its provider; the project of
    `xpk.GkeOptions` locates a cluster that this machine does not know. Every method raises NotFoundError if the cluster
    does not exist, UsageError for options of wrong types or of another project, AuthorizationError if the API server
    denies access, and UnavailableError if it does not answer.
    """

    def __init__(self, name: str, *, options: ProviderOptions | None = None) -> None:
        self.name = name
        self._options = options

    def __repr__(self) -> str:
        """Return the expression that makes it."""
        return f"xpk.Cluster({self.name!r})"

    @cached_property
    def api(self) -> ObjectApi:
        """The API server of the cluster."""
        return self._provider.connect(self.name)

    @cached_property
    def target(self) -> Target:
        """Properties of the cluster on which workloads run."""
        return self._provider.target(self.name)

    @cached_property
    def nodes(self) -> Nodes:
        """The nodes of its slices: evidence against them, and quarantine."""
        from xpk.nodes import Nodes

        return Nodes(self.api, self.describe, OutputRoots(lambda: self.target))

    @cached_property
    def _provider(self) -> Provider:
        return provider_of(self.name) if self._options is None else configured_provider(self.name, self._options)

    @property
    def _usage(self) -> Source:
        from xpk.usage import usage_source

        return usage_source(self.name, api=self.api, target=lambda: self.target)

    def submit(self, workload: Workload, *, on_progress: Callable[[Notice], None] = ignore) -> WorkloadHandle:
        """Create a workload and return its handle. Everything is checked before anything is created.

        `on_progress` gets a line for each step, and the warnings. Raises

        * UsageError: fields are invalid; `problems` has all of them, and the error below that comes first, if any
        * NameTaken: a workload of this name exists
        * OutputExists: an earlier workload of this name has left output, and neither `resume` nor `fresh` is set
        * QuotaExceeded: its queue can never hold it
        * CapacityError: it does not fit in the chips' memory, or costs more than `max_cost`
        * NotFoundError: its queue, or a claim or storage that it mounts, does not exist
        * MissingToolError: this machine or the cluster lacks a package, a program or a controller
        """
        try:
            destination = destination_of(self, valid_fields(workload, Problems()))
        except XpkError as error:
            raise with_problems_of(workload, error, Problems()) from error
        submit(workload, destination, report=on_progress, price=price)
        return WorkloadHandle(self, workload.name, workload.namespace, output_root=workload.output_root)

    def describe(self) -> ClusterInfo:
        """Return the size and the state of the cluster, and the workload on each of its slices."""
        return self._provider.describe(self.name)

    def resize(
        self,
        num_slices: int,
        *,
        force: bool = False,
        dry_run: bool = False,
        on_progress: Callable[[Notice], None] = ignore,
    ) -> Plan:
        """Change the number of slices and return the plan; with `dry_run`, only plan.

        `force` deletes the workloads on removed slices. Raises UsageError for an invalid number, ConflictError if
        workloads are on slices that would be removed, unless `force` is set, or if the cluster was modified
        concurrently, and QuotaExceeded or CapacityError if a cloud has no such slices.
        """
        plan = self._provider.plan_resize(self.name, num_slices, force=force)
        return plan if dry_run else carry_out(plan, on_progress)

    def delete(
        self, *, force: bool = False, dry_run: bool = False, on_progress: Callable[[Notice], None] = ignore
    ) -> Plan:
        """Delete the cluster with everything on it, including output, and return the plan; with `dry_run`, only plan.

        `force` deletes the workloads on it. Raises ConflictError if there are some, unless `force` is set.
        """
        plan = self._provider.plan_delete(self.name, force=force)
        return plan if dry_run else carry_out(plan, on_progress)

    def workload(self, name: str, namespace: str = "default", *, output_root: str | None = None) -> WorkloadHandle:
        """Return the handle of a workload without checking that it exists.

        `output_root` is the one that it was created with, if it is not the cluster's own.
        """
        return WorkloadHandle(self, name, namespace, output_root=output_root)

    def workloads(self, namespace: str | None = "default") -> list[WorkloadStatus]:
        """Return the status of every workload of a namespace, or of all namespaces for None, oldest first."""
        return with_local_restarts(reader.find_all(self.api, namespace), OutputRoots(lambda: self.target))

    def delete_workloads(
        self,
        *workloads: str,
        all: bool = False,
        labels: Mapping[str, str] | None = None,
        namespace: str = "default",
        with_output: bool = False,
        output_root: str | None = None,
        grace_seconds: int | None = None,
        wait: bool = True,
        timeout: float = 120.0,
        force: bool = False,
        ignore_not_found: bool = False,
        dry_run: bool = False,
        on_progress: Callable[[Notice], None] = ignore,
    ) -> list[Deletion]:
        """Delete workloads by name, those with all of `labels`, or all that xpk created; return them in order.

        Nothing is deleted if one of them cannot be, nor with `dry_run`. Their output stays unless `with_output` is
        set, which always waits. Raises

        * UsageError: not exactly one of names, `labels` and `all` is given, or several of the errors below occurred
        * NotFoundError: a named workload does not exist, and `ignore_not_found` is not set
        * ConflictError: another tool created a named workload, and `force` is not set; or output is not below the
          cluster's root nor `output_root`
        * TimedOutError: hosts still run after `timeout` seconds
        """
        if [bool(workloads), bool(labels), all].count(True) != 1:
            raise UsageError("pass exactly one of names, labels and all=True")
        roots = OutputRoots(lambda: self.target, output_root) if with_output else None
        if workloads:
            deletions = deletion.plan_named(
                self.api,
                workloads,
                namespace,
                cluster=self.name,
                roots=roots,
                force=force,
                ignore_not_found=ignore_not_found,
                report=on_progress,
            )
        else:
            deletions = deletion.plan_all(self.api, namespace, labels=labels, roots=roots)
        if not dry_run:
            from xpk.jobs.usage.deletion import DeletionRecorder

            seconds, tell = timeout if wait or with_output else None, warn(on_progress)
            deletion.delete_copies(
                self.api,
                deletions,
                namespace,
                OutputRoots(lambda: self.target, output_root),
                connect=connect,
                usage=lambda cluster: DeletionRecorder(Cluster(cluster)._usage, namespace, tell),
                grace_seconds=grace_seconds,
                timeout=seconds,
                report=on_progress,
            )
            deletion.carry_out(
                self.api,
                deletions,
                namespace,
                grace_seconds=grace_seconds,
                timeout=seconds,
                ignore_not_found=ignore_not_found,
                usage=DeletionRecorder(self._usage, namespace, tell),
                report=on_progress,
            )
        return deletions

    def usage(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        by: Sequence[str] = ("team",),
        prices: str | Path | None = None,
    ) -> Usage:
        """Return who used the chips from `since` [default: 7 days ago] to `until` [default: now], and what was lost.

        `by`: "team", "user", "workload" and "cause", in the order of the columns. `prices`: a file, as of --prices, or
        "list" [default: list prices if the cluster has a region].
        Raises UsageError for other columns or an empty interval, XpkError if the ledger cannot be read.
        """
        from xpk.usage import usage_of

        return usage_of(self._usage, since=since, until=until, by=by, prices=prices)


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
        """Return the status, with restarts, events, its copies and, while it is queued, its estimated start."""
        status, events = reader.inspect(self.cluster.api, self.name, self.namespace, self.roots)
        if status.phase is Phase.QUEUED:
            from xpk.jobs.simulation.live import with_start

            status = with_start(self.cluster.api, status, self.roots)
        if status.clusters:
            placer = self._placer(self.cluster.name)
            status = replace(status, placements=placements(placer.observe(), placer.spec.run))
        return replace(status, events=events)

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
        """Wait for the end, also where the workload is moved, and return the status; `on_progress` gets each status.

        Raises TimedOutError after `timeout` seconds, and WorkloadFailedError for an image that cannot be pulled or,
        unless `check` is false, for a workload that failed.
        """

        def wait(cluster: str, left: float | None, look: Tell) -> WorkloadStatus:
            def tell(status: WorkloadStatus) -> None:
                look(status)
                on_progress(status)

            where, api = names.location_flags(cluster, self.namespace), self._api_of(cluster)
            wait_here = partial(lifecycle.wait, api, self.name, self.namespace, timeout=left, stated_timeout=timeout)
            return wait_here(tell=tell, where=where, must_start=True)

        place, status = wait_through_moves(self.cluster.name, wait, self._placer, timeout=timeout)
        if check:
            lifecycle.check_succeeded(status, where=names.location_flags(place, self.namespace))
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
    ) -> Iterator[HostLine]:
        """Return the lines of all hosts of the newest attempt, merged by time; with `follow`, until the workload ends.

        `previous` reads the attempt before, where it is kept; `tail` counts lines of each host; `grep` is a regular
        expression. Raises UsageError for a bad expression, a negative number of lines or more than 128 hosts, XpkError
        if no host has a log yet.
        """
        query = LogQuery(slice=slice, host=host, since=since, tail=tail, grep=grep)
        if follow:
            return logging.follow_logs(self.cluster.api, self.name, self.namespace, query, where=self._where)
        return logging.read_logs(
            self.cluster.api, self.name, self.namespace, query, previous=previous, where=self._where
        )

    def suspend(self) -> None:
        """Stop the hosts and give the slices back until `resume`. Raises ConflictError if the workload has ended."""
        lifecycle.set_active(self.cluster.api, self.name, self.namespace, active=False, where=self._where)

    def resume(self) -> None:
        """Queue a suspended workload again. Raises ConflictError if it has ended."""
        lifecycle.set_active(self.cluster.api, self.name, self.namespace, active=True, where=self._where)

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

    def _api_of(self, cluster: str) -> ObjectApi:
        return self.cluster.api if cluster == self.cluster.name else connect(cluster)

    def _placer(self, cluster: str) -> Placer:
        api = self._api_of(cluster)
        return placer_of(api, self.roots, self.name, self.namespace, connect, writes=False)

    @property
    def _where(self) -> str:
        return names.location_flags(self.cluster.name, self.namespace)


def connect(cluster: str) -> ObjectApi:
    """Return the API server of a cluster."""
    return Cluster(cluster).api


def destination_of(cluster: Cluster, workload: Workload) -> Destination:
    """Return a cluster with the queue of a workload. Raises NotFoundError if the queue does not exist."""
    queue = read_queue(cluster.api, workload.queue, workload.namespace, cluster=cluster.name)
    return Destination(cluster.name, cluster.target, queue, cluster.api)
