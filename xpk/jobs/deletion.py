"""Deletion of one or several workloads: all of them are checked before the first one is deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from xpk.api.base import ObjectApi
from xpk.jobs.create.notice import Notice, Report, ignore
from xpk.jobs.output.folder import remove_output
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.placement.decision import CopyState
from xpk.jobs.placement.placements import placer_of
from xpk.jobs.placement.placer import Connect, look_at_copies
from xpk.jobs.status.jobset import copy_spec
from xpk.jobs.status.reader import find_all
from xpk.jobs.termination import await_end, check_maker, claimed_output, end
from xpk.model import names
from xpk.model.errors import NotFoundError, UnavailableError, UsageError, XpkError
from xpk.model.status import Phase, WorkloadStatus

if TYPE_CHECKING:
    from xpk.jobs.usage.deletion import DeletionRecorder


@dataclass(frozen=True, slots=True)
class Deletion:
    """A workload to delete. `output_dir` is deleted with it; "" if its output stays.

    `clusters`: those of its copies, with the one that it is deleted on; empty if it has only one.
    """

    name: str
    output_dir: str = ""
    clusters: tuple[str, ...] = ()


def plan_named(
    api: ObjectApi,
    named: Sequence[str],
    namespace: str,
    *,
    cluster: str,
    roots: OutputRoots | None = None,
    force: bool = False,
    ignore_not_found: bool = False,
    report: Report = ignore,
) -> list[Deletion]:
    """Return the deletions of named workloads, queued ones first; with their output if there are `roots`.

    Raises NotFoundError unless `ignore_not_found` is set, ConflictError for a workload of another tool unless `force`
    is set, or for output that is not below `roots`, and UsageError for several of these.
    """
    existing = {status.name: status for status in find_all(api, namespace, brief=True)}
    ended: list[str] = []  # before, but their hosts may still be running
    refusals: list[XpkError] = []
    for one in dict.fromkeys(named):
        try:
            if one not in existing:
                claimed_output(api, one, namespace)
                ended.append(one)
            elif not force:
                check_maker(existing[one], where=names.location_flags(cluster, namespace))
        except XpkError as error:
            if ignore_not_found and isinstance(error, NotFoundError):
                report(Notice(error.message, is_warning=True))
            else:
                refusals.append(error)
    _check(refusals)
    ordered = {
        status.name: status.clusters for status in _in_order([existing[one] for one in named if one in existing])
    }
    return _with_output(api, ordered | {one: () for one in ended}, namespace, roots)


def plan_all(
    api: ObjectApi,
    namespace: str,
    *,
    labels: Mapping[str, str] | None = None,
    matches: Callable[[WorkloadStatus], bool] = lambda status: True,
    roots: OutputRoots | None = None,
) -> list[Deletion]:
    """Return the deletions of all matching workloads that xpk created, queued ones first.

    Raises ConflictError for output that is not below `roots`.
    """
    statuses = [
        status for status in find_all(api, namespace, labels, brief=True) if status.maker == "xpk" and matches(status)
    ]
    return _with_output(api, {status.name: status.clusters for status in _in_order(statuses)}, namespace, roots)


def carry_out(
    api: ObjectApi,
    deletions: Sequence[Deletion],
    namespace: str,
    *,
    grace_seconds: int | None = None,
    timeout: float | None = 120.0,
    ignore_not_found: bool = False,
    usage: DeletionRecorder | None = None,
    report: Report = ignore,
) -> None:
    """Delete workloads, wait `timeout` seconds for their hosts (None: do not wait), then remove their output.

    `usage` records the use of chips, which nothing shows afterwards.

    All are ended before the first wait: capacity that one frees must not admit the next. Raises NotFoundError for a
    single workload that is gone, and the first failure, once the others are deleted.
    """
    ended: list[Deletion] = []
    failed: list[XpkError] = []
    if usage and deletions:
        usage.begin([deletion.name for deletion in deletions])
    for deletion in deletions:
        try:
            end(api, deletion.name, namespace, grace_seconds=grace_seconds)
            ended.append(deletion)
        except NotFoundError as error:
            if len(deletions) == 1 and not ignore_not_found:
                raise
            report(Notice(error.message, is_warning=True))
        except XpkError as error:
            failed.append(error)
    start = time.monotonic()
    for deletion in ended:
        try:
            if timeout is not None:
                await_end(api, deletion.name, namespace, timeout=timeout, start=start, is_immediate=grace_seconds == 0)
            if usage:
                usage.end(deletion.name, with_output=bool(deletion.output_dir))
            if deletion.output_dir:
                remove_output(deletion.output_dir)
            report(Notice(f"workload '{deletion.name}' deleted"))
        except XpkError as error:
            failed.append(error)
    for other in failed[1:]:
        report(Notice(other.message, is_warning=True))
    if failed:
        raise failed[0]


def delete_copies(
    api: ObjectApi,
    deletions: Sequence[Deletion],
    namespace: str,
    roots: OutputRoots,
    *,
    connect: Connect,
    usage: Callable[[str], DeletionRecorder],
    grace_seconds: int | None = None,
    timeout: float | None = 120.0,
    report: Report = ignore,
) -> None:
    """Delete the copies of workloads on clusters other than that of `api`, so that none of them is released any more.

    `connect` returns the API server of a cluster, `usage` records its use of chips. A copy that cannot be deleted is
    reported; `xpk workload place` on its cluster deletes it.
    """
    connect = cache(connect)

    def warn(text: str) -> None:
        report(Notice(text, is_warning=True))

    for name in (deletion.name for deletion in deletions if deletion.clusters):
        try:
            spec = copy_spec(api.get("JobSet", name, namespace))
        except NotFoundError as error:
            warn(f"the copies of '{name}' on other clusters are not deleted: {error.message}")
            continue
        if spec is None:  # another workload has the name now
            continue
        try:
            placer_of(api, roots, name, namespace, connect).end("deleted by its user")
        except XpkError as error:
            warn(f"cannot write the lease of '{name}': {error.message}")
        # Without the lease, which may be unreadable and only says where the workload runs.
        for cluster, copy in look_at_copies(connect, name, namespace, spec).items():
            if cluster == spec.cluster or copy.view.state is CopyState.MISSING:
                continue
            try:
                if copy.jobset is None:
                    raise UnavailableError(copy.view.reason)
                carry_out(
                    connect(cluster),
                    [Deletion(name)],
                    namespace,
                    grace_seconds=grace_seconds,
                    timeout=timeout,
                    ignore_not_found=True,
                    usage=usage(cluster),
                    report=lambda notice: report(notice) if notice.is_warning else None,
                )
            except XpkError as error:
                warn(f"the copy of '{name}' on '{cluster}' is not deleted: {error.message}")


def _check(refusals: list[XpkError]) -> None:
    """Raise a single error as it is, several as one UsageError; an exit code that all share is kept."""
    if len(refusals) == 1:
        raise refusals[0]
    if refusals:
        problems = [error.message for error in refusals]
        combined = UsageError(problems[0], problems=problems, hint="omit these names; nothing was deleted")
        if len(codes := {error.exit_code for error in refusals}) == 1:
            combined.exit_code = codes.pop()
        raise combined


def _in_order(statuses: list[WorkloadStatus]) -> list[WorkloadStatus]:
    """Return workloads in the order of deletion: queued ones first, so that none is admitted in between."""
    return sorted(statuses, key=lambda status: status.phase is not Phase.QUEUED)


def _with_output(
    api: ObjectApi, clusters_of: Mapping[str, tuple[str, ...]], namespace: str, roots: OutputRoots | None
) -> list[Deletion]:
    """Return the deletions of workloads, by the clusters of their copies.

    Raises ConflictError for output that is not below `roots`.
    """
    folders: dict[str, str] = {}
    if roots:
        for one in clusters_of:
            with suppress(NotFoundError):  # reported when the workload is ended
                folders[one] = roots.to_remove(one, namespace, claimed_output(api, one, namespace))
    return [Deletion(one, folders.get(one, ""), clusters) for one, clusters in clusters_of.items()]
