"""The target cluster of a workload; a dry run also accepts an unreachable one."""

from __future__ import annotations

from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console
from xpk.client import Cluster, destination_of
from xpk.jobs.create.create import Queue
from xpk.jobs.create.destination import Destination
from xpk.jobs.create.resolve import with_problems_of
from xpk.jobs.create.workload import Workload
from xpk.model import names
from xpk.model.accelerators import find_shape
from xpk.model.errors import (
    AuthorizationError,
    MissingToolError,
    NotFoundError,
    Problems,
    TimedOutError,
    UnavailableError,
    XpkError,
)
from xpk.model.specs import Target
from xpk.proc import Runner

# Errors of an unreachable cluster.
OUT_OF_REACH = (AuthorizationError, MissingToolError, NotFoundError, TimedOutError, UnavailableError)


def find_destination(
    console: Console,
    cluster: str | None,
    request: Workload,
    problems: Problems,
    runner: Runner,
    *,
    dry_run: str | None = None,
) -> Destination:
    """Return the target cluster. In a client-side dry run, an unreachable one is assumed to be a new GKE cluster.

    Raises the error about the cluster, combined with `problems` and all other problems of the request. `runner` starts
    the trainer, which checks its settings.
    """
    try:
        return _find(console, cluster, request, is_dry=dry_run == "client")
    except XpkError as error:
        raise with_problems_of(request, error, problems, runner) from error


def _find(console: Console, cluster: str | None, request: Workload, *, is_dry: bool) -> Destination:
    try:
        return destination_of(Cluster(the_cluster(cluster)), request)
    except OUT_OF_REACH as error:
        if not is_dry or cluster is None:
            raise
        if not request.accelerator_type:
            raise type(error)(error.message, hint=_assumed_hint(error)) from error
        console.warn(
            f"without --dry-run, this command would fail: {error.message}; the objects are those for a new GKE cluster"
        )
        return _assumed_destination(cluster, request.accelerator_type, request.queue)


def _assumed_hint(error: XpkError) -> str:
    """Return an error's hint with the one for a dry run: objects can also be printed without a cluster."""
    without = "pass --tpu-type TYPE to print the objects for a new GKE cluster"
    return f"{error.hint}; or {without}" if error.hint else without


def _assumed_destination(cluster: str, accelerator_type: str, queue: str | None) -> Destination:
    """Return an assumed GKE cluster with slices of the requested type and capacity."""
    kind = find_shape(accelerator_type).name
    target = Target(emulated=False, sets_slice_environment=False, output_root="", autoprovisioned={kind: ""})
    return Destination(cluster, target, Queue(queue or names.QUEUE, {kind: {}}, is_judged=False), None)
