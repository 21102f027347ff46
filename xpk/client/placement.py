"""Workloads that may run on several clusters: creation, placement, and the cluster where one runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from xpk.api.base import ObjectApi
from xpk.client.cluster import Cluster, WorkloadHandle, connect, destination_of
from xpk.cost import price
from xpk.jobs.create import copies as creating
from xpk.jobs.create.checks import valid_fields
from xpk.jobs.create.notice import Notice, Report, ignore
from xpk.jobs.create.workload import Workload
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.placement.decision import Action, CopyState, Decide, Done, Hold, Release, Remove, Stay
from xpk.jobs.placement.placements import NotPlaced, chosen_cluster, placements, placer_of
from xpk.jobs.placement.placer import Pass, Scene
from xpk.jobs.status.reader import inspect
from xpk.model import names
from xpk.model.errors import Problems
from xpk.model.status import Occurrence, WorkloadStatus
from xpk.storage import open_folder


def submit(
    workload: Workload,
    clusters: Sequence[str],
    *,
    move_after: float = creating.MOVE_AFTER_SECONDS,
    on_progress: Callable[[Notice], None] = ignore,
) -> WorkloadHandle:
    """Create a workload that may run on several clusters, the preferred one first; return its handle.

    It is released on the first cluster. `place` moves it: after `move_after` seconds in which it does not run. Raises
    what `Cluster.submit` raises.
    """
    request = valid_fields(workload, problems := Problems())
    resolved = creating.resolve_copies(
        request,
        clusters,
        lambda cluster: destination_of(Cluster(cluster), request),
        move_after=move_after,
        report=on_progress,
        problems=problems,
        price=price,
    )
    creating.preflight(resolved, on_progress)
    return create(resolved, on_progress)


def create(resolved: creating.ResolvedCopies, report: Report = ignore) -> WorkloadHandle:
    """Create checked copies and release the first one. If it cannot be released, all are deleted again."""
    creating.create_copies(resolved, report=report, price=price)
    try:
        placer = creating.placer_of(resolved, open_folder(resolved.spec.output_dir).slot(names.LEASE_FILE))
        for done in placer.passes(once=True):
            report_action(done, report)
            if isinstance(done.action, Release) and done.is_changed:
                break
    except BaseException:
        creating.delete_created(resolved)  # or the same command would find the name taken
        raise
    cluster, root = Cluster(resolved.copy.cluster), resolved.copies[0].request.output_root
    return WorkloadHandle(cluster, resolved.spec.name, resolved.spec.namespace, output_root=root)


def place(
    handle: WorkloadHandle,
    *,
    to: str | None = None,
    once: bool = False,
    on_pass: Callable[[Pass], None] = lambda done: None,
) -> WorkloadHandle:
    """Keep a workload running where there is capacity, until it has ended; `to` moves it to a cluster first.

    Returns its handle on the cluster where it ended; its copies elsewhere are deleted. `once`: return when there is
    nothing to do now. Any number of programs may do this at a time. Raises NotPlaced, UsageError for another cluster,
    and XpkError if the lease cannot be written.
    """
    placer = placer_of(handle.cluster.api, handle.roots, handle.name, handle.namespace, connect)
    if to is not None:
        placer.move(to)
    last: Pass | None = None
    for last in placer.passes(once=once):
        on_pass(last)
    return handle if last is None else _on(handle, chosen_cluster(last.scene, placer.spec.run))


def locate(handle: WorkloadHandle) -> WorkloadHandle:
    """Return the handle of a workload on the cluster where it runs or waits; the same one if it has one cluster."""
    return locator(handle)()


def locator(handle: WorkloadHandle) -> Callable[[], WorkloadHandle]:
    """Return a function that does what `locate` does, also once the copy on the cluster of `handle` is deleted."""
    try:
        placer = placer_of(handle.cluster.api, handle.roots, handle.name, handle.namespace, connect, writes=False)
    except NotPlaced:
        return lambda: handle
    return lambda: _on(handle, chosen_cluster(placer.observe(), placer.spec.run))


def _on(handle: WorkloadHandle, cluster: str) -> WorkloadHandle:
    """Return the handle of a workload's copy on a cluster."""
    if cluster == handle.cluster.name:
        return handle
    return WorkloadHandle(Cluster(cluster), handle.name, handle.namespace, output_root=handle.roots.stated)


def inspect_copies(
    cluster: str, api: ObjectApi, roots: OutputRoots, status: WorkloadStatus, *, brief: bool = False
) -> tuple[str, WorkloadStatus, tuple[Occurrence, ...]]:
    """Return the cluster where a workload of several clusters runs or waits, its status there, and its events.

    `status` is that of its copy on `cluster`; the result has the placements of all copies. `brief`: see
    `reader.inspect`.
    """
    placer = placer_of(api, roots, status.name, status.namespace, connect, writes=False)
    scene = placer.observe()
    chosen, shown, events = chosen_cluster(scene, placer.spec.run), status, status.events
    if chosen != cluster and scene.copies[chosen].jobset is not None:
        other = WorkloadHandle(Cluster(chosen), status.name, status.namespace, output_root=roots.stated)
        shown, events = inspect(other.cluster.api, other.name, other.namespace, other.roots, brief=brief)
    return chosen, replace(shown, placements=placements(scene, placer.spec.run)), events


def report_action(done: Pass, report: Report) -> None:
    """Report what a pass has done, if anything."""
    if text := action_words(done.action, done.scene) if done.is_changed else "":
        report(Notice(text))


def action_words(action: Action, scene: Scene) -> str:
    """Return an action in words; "" for one without interest."""
    match action:
        case Decide(lease):
            is_new = scene.lease is None or (scene.lease.cluster, scene.lease.end) != (lease.cluster, lease.end)
            chosen = f"cluster '{lease.cluster}' chosen"
            before = scene.lease.cluster if scene.lease and scene.lease.run == lease.run else ""
            if lease.end:
                return lease.end
            if not is_new:
                return ""
            why = scene.views[before].reason if before in scene.views else ""
            return f"{chosen}: it did not run on '{before}' ({why})" if why else chosen
        case Hold(clusters):
            running = [cluster for cluster in clusters if scene.views[cluster].state is not CopyState.HELD]
            return f"holding the copy on {', '.join(running)}" if running else ""
        case Release(cluster):
            return "" if scene.views[cluster].state is CopyState.RELEASING else f"released on '{cluster}'"
        case Remove(clusters):
            return f"copies on {', '.join(clusters)} deleted"
        case Stay(reason) | Done(reason):
            return reason
    return ""
