"""The next action for a workload of several clusters, as a pure function of its lease and its copies.

Safety needs neither clocks nor the lease to be read in time: a copy is released in an epoch only after all others were
seen held in the same epoch, and a copy that has seen a newer epoch cannot be released in an older one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from xpk.jobs.placement.lease import Lease

SKEW_SECONDS = 60.0  # by which the clocks of machines may differ
_LONGEST = 5  # doublings of the time for which a copy may wait, while no cluster has capacity


class CopyState(StrEnum):
    """State of a copy of a workload."""

    HELD = "held"  # it has no hosts and gets none
    HOLDING = "stopping"  # it is becoming held
    RELEASING = "starting"  # it is released, but not in its queue yet
    WAITING = "waiting"  # it is released, but hosts are not running
    RUNNING = "running"
    SUSPENDED = "suspended"  # by its user
    ENDED = "ended"
    MISSING = "missing"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class CopyView:
    """A copy as it was seen; `epoch` is the newest that it has obeyed, `reason` explains its state."""

    state: CopyState
    epoch: int = 0
    reason: str = ""

    @property
    def is_released(self) -> bool:
        """Return whether it may run."""
        return self.state in (CopyState.RELEASING, CopyState.WAITING, CopyState.RUNNING, CopyState.SUSPENDED)


@dataclass(frozen=True, slots=True)
class Decide:
    """Write a lease over the one that was read."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Hold:
    """Make copies obey an epoch and hold them; takes several passes for a copy that runs."""

    clusters: tuple[str, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class Release:
    """Let a copy run in an epoch."""

    cluster: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete copies of a workload that has ended."""

    clusters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stay:
    """Nothing to do now; `reason` says what it waits for, "" if it runs."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing will be to do any more."""

    reason: str


Action = Decide | Hold | Release | Remove | Stay | Done


def decide(
    lease: Lease | None,
    copies: Mapping[str, CopyView],
    *,
    run: str,
    clusters: Sequence[str],
    now: float,
    move_after: float,
) -> Action:
    """Return the next action.

    `copies` are the copies of `run` on `clusters`, the preferred one first. `now` is in Unix seconds. A copy that waits
    for longer than `move_after` seconds is held, and the next one released; the time doubles with each turn around all
    clusters.
    """
    newest = max((copy.epoch for copy in copies.values()), default=0)
    if lease is None or lease.run != run:
        return _first(lease, copies, run, clusters, newest)
    if lease.end:
        return _clean_up(lease, copies)
    if ended := [cluster for cluster, copy in copies.items() if copy.state is CopyState.ENDED]:
        cluster = lease.cluster if lease.cluster in ended else ended[0]  # one that ended just before it was held
        return Decide(replace(lease, cluster=cluster, since=None, end=copies[cluster].reason))
    if newest > lease.epoch:  # the lease was restored from a copy; one that was read too late is not written over
        return Decide(replace(lease, epoch=newest + 1))
    chosen = copies.get(lease.cluster, CopyView(CopyState.MISSING))
    if chosen.state is CopyState.MISSING:
        return Decide(replace(lease, end=f"its copy on {lease.cluster} was deleted"))
    if chosen.state is CopyState.UNREACHABLE:
        return Stay(f"cluster {lease.cluster} is unreachable: {chosen.reason}")
    if chosen.is_released and chosen.epoch == lease.epoch:
        return _watch(lease, chosen, copies, clusters, now, move_after)
    return _release(lease, copies)


def next_lease(lease: Lease, copies: Mapping[str, CopyView], cluster: str) -> Lease:
    """Return the decision for another cluster."""
    epoch = 1 + max(lease.epoch, *(copy.epoch for copy in copies.values()))
    return replace(lease, epoch=epoch, cluster=cluster, since=None, moves=lease.moves + 1)


def _first(
    earlier: Lease | None, copies: Mapping[str, CopyView], run: str, clusters: Sequence[str], newest: int
) -> Action:
    """Decide for the first cluster that has a copy; an `earlier` lease is that of an earlier workload of the name."""
    for cluster in clusters:
        if copies[cluster].state is CopyState.UNREACHABLE:
            return Stay(f"cluster {cluster} is unreachable: {copies[cluster].reason}")
    existing = [cluster for cluster in clusters if copies[cluster].state is not CopyState.MISSING]
    if not existing:
        return Done("it was deleted")
    # A copy that was released is not stopped because its lease was lost.
    released = [cluster for cluster in existing if copies[cluster].is_released]
    epoch = 1 + max(newest, earlier.epoch if earlier else 0)
    return Decide(Lease(run=run, epoch=epoch, cluster=(released or existing)[0]))


def _clean_up(lease: Lease, copies: Mapping[str, CopyView]) -> Action:
    """Remove all copies of a workload that has ended but the one that shows how it ended."""
    leftover = {
        cluster: copy.state
        for cluster, copy in copies.items()
        if copy.state is not CopyState.MISSING and (cluster != lease.cluster or copy.state is not CopyState.ENDED)
    }
    if unreachable := [cluster for cluster, state in leftover.items() if state is CopyState.UNREACHABLE]:
        leftover = {cluster: state for cluster, state in leftover.items() if cluster not in unreachable}
        if not leftover:
            return Stay(f"its copies on {', '.join(unreachable)} cannot be deleted: unreachable")
    return Remove(tuple(leftover)) if leftover else Done(lease.end)


def _release(lease: Lease, copies: Mapping[str, CopyView]) -> Action:
    """Release the chosen copy, once all others are held in this epoch."""
    to_hold, unreachable = list[str](), dict[str, str]()
    for cluster, copy in copies.items():
        if cluster == lease.cluster:
            if copy.state is CopyState.HOLDING:
                to_hold.append(cluster)
        elif copy.state is CopyState.UNREACHABLE:
            unreachable[cluster] = copy.reason
        elif copy.state is not CopyState.MISSING and (copy.state, copy.epoch) != (CopyState.HELD, lease.epoch):
            to_hold.append(cluster)
    if to_hold:
        return Hold(tuple(to_hold), lease.epoch)
    if unreachable:
        where = f"{lease.cluster} waits until {', '.join(unreachable)} can be reached"
        why = "; ".join(dict.fromkeys(filter(None, unreachable.values())))
        return Stay(f"{where}: its copy there might run" + (f" ({why})" if why else ""))
    return Release(lease.cluster, lease.epoch)


def _watch(
    lease: Lease,
    chosen: CopyView,
    copies: Mapping[str, CopyView],
    clusters: Sequence[str],
    now: float,
    move_after: float,
) -> Action:
    """Return the action for a copy that was released in this epoch."""
    if chosen.state is CopyState.RELEASING:
        return Release(lease.cluster, lease.epoch)
    if chosen.state is not CopyState.WAITING:
        if lease.since is not None or lease.moves:
            return Decide(replace(lease, since=None, moves=0))
        return Stay(chosen.reason if chosen.state is CopyState.SUSPENDED else "")
    if lease.since is None or lease.since > now + SKEW_SECONDS:
        return Decide(replace(lease, since=now))
    limit = move_after * 2 ** min(lease.moves // len(clusters), _LONGEST)
    if now - lease.since >= limit and (other := _next(lease.cluster, copies, clusters)):
        return Decide(next_lease(lease, copies, other))
    return Stay(f"on {lease.cluster}: {chosen.reason}")


def _next(cluster: str, copies: Mapping[str, CopyView], clusters: Sequence[str]) -> str | None:
    """Return the cluster after `cluster` whose copy can be released; None if there is none."""
    at = clusters.index(cluster) if cluster in clusters else -1
    for other in [*clusters[at + 1 :], *clusters[: max(at, 0)]]:
        if copies[other].state not in (CopyState.MISSING, CopyState.UNREACHABLE):
            return other
    return None
