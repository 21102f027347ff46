"""The cluster where a workload of several clusters runs or waits."""

from __future__ import annotations

from collections.abc import Callable

from xpk.api.base import ObjectApi
from xpk.capacity.provider import provider_of
from xpk.cli.target import output_roots
from xpk.cli.terminal.output import Console
from xpk.jobs.status.jobset import copy_spec
from xpk.model.errors import NotFoundError, XpkError
from xpk.model.status import Occurrence, WorkloadStatus


def connect_to_chosen(cluster: str, name: str, namespace: str) -> tuple[str, ObjectApi]:
    """Return the cluster where a workload runs or waits, and its API: `cluster` unless it may run on several."""
    return finder(cluster, name, namespace)()


def finder(cluster: str, name: str, namespace: str) -> Callable[[], tuple[str, ObjectApi]]:
    """Return a function that does what `connect_to_chosen` does, also once the copy on `cluster` is deleted."""
    api = provider_of(cluster).connect(cluster)
    try:
        if copy_spec(api.get("JobSet", name, namespace)) is None:
            return lambda: (cluster, api)
    except NotFoundError:
        return lambda: (cluster, api)  # the command reports it, with the names that exist
    from xpk.client import Cluster, WorkloadHandle
    from xpk.client.placement import locator

    stated = output_roots(cluster).stated
    locate = locator(WorkloadHandle(Cluster(cluster), name, namespace, output_root=stated))

    def find() -> tuple[str, ObjectApi]:
        chosen = locate().cluster
        return chosen.name, chosen.api

    return find


def inspect_chosen(
    console: Console, cluster: str, api: ObjectApi, snapshot: WorkloadStatus, *, brief: bool = False
) -> tuple[str, WorkloadStatus, tuple[Occurrence, ...]]:
    """Return the cluster where a workload of several clusters runs, its status there with all copies, and its events.

    A warning is printed if that cannot be read; `snapshot`, the status on `cluster`, is returned then.
    """
    from xpk.client.placement import inspect_copies

    try:
        return inspect_copies(cluster, api, output_roots(cluster), snapshot, brief=brief)
    except XpkError as error:
        console.tell(f"warning: cannot read where '{snapshot.name}' runs: {error.message}")
        return cluster, snapshot, snapshot.events
