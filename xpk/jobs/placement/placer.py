"""The placer: keeps a workload of several clusters running where there is capacity.

Any number of placers may run at a time, and each may end at any moment: every pass reads the lease and all copies
again, and does one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from xpk.api.base import ObjectApi
from xpk.jobs.outage import Outage
from xpk.jobs.placement import copies as copying
from xpk.jobs.placement import lease as leasing
from xpk.jobs.placement.copies import Copy
from xpk.jobs.placement.decision import (
    Action,
    CopyState,
    CopyView,
    Decide,
    Done,
    Hold,
    Release,
    Remove,
    Stay,
    decide,
    next_lease,
)
from xpk.jobs.placement.lease import Lease, LeaseFile
from xpk.model.errors import (
    AuthorizationError,
    ConflictError,
    MissingToolError,
    NotFoundError,
    TimedOutError,
    UnavailableError,
    UsageError,
    XpkError,
)
from xpk.model.specs import CopySpec

Connect = Callable[[str], ObjectApi]
_PAUSE_SECONDS = 1.0  # between passes while something is under way
_QUIET_SECONDS = 5.0  # between passes while the workload runs
_TRIES = 20  # to write a lease that others write as well


@dataclass(frozen=True, slots=True)
class Scene:
    """The lease, its version, and all copies, read one after the other."""

    version: int
    lease: Lease | None
    copies: Mapping[str, Copy]

    @property
    def views(self) -> dict[str, CopyView]:
        """Return what the copies do."""
        return {cluster: copy.view for cluster, copy in self.copies.items()}


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: the action that was due, whether it changed anything, and what was seen before."""

    action: Action
    is_changed: bool
    scene: Scene


class Placer:
    """Places one workload; `connect` returns the API server of a cluster, `clock` the time in Unix seconds."""

    def __init__(
        self,
        name: str,
        namespace: str,
        spec: CopySpec,
        file: LeaseFile,
        connect: Connect,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name, self.namespace, self.spec = name, namespace, spec
        self._file, self._connect, self._clock = file, connect, clock

    def observe(self) -> Scene:
        """Read the lease, then all copies; an unreachable cluster is the state of its copy."""
        version, lease = leasing.read(self._file)
        return Scene(version, lease, look_at_copies(self._connect, self.name, self.namespace, self.spec))

    def step(self) -> Pass:
        """Do what is due. Raises XpkError if the lease cannot be read or written."""
        scene = self.observe()
        action = decide(
            scene.lease,
            scene.views,
            run=self.spec.run,
            clusters=self.spec.clusters,
            now=self._clock(),
            move_after=self.spec.move_after_seconds,
        )
        return Pass(action, self._do(action, scene), scene)

    def passes(self, *, once: bool = False, pause: Callable[[float], None] = time.sleep) -> Iterator[Pass]:
        """Yield pass after pass, until nothing will be to do any more; with `once`, until there is nothing to do now.

        A copy that has to be held may take several seconds; `once` waits for that. Without it, a storage service that
        does not answer is asked again for some minutes. Raises XpkError.
        """
        outage = Outage()
        while True:
            try:
                done = self.step()
            except (AuthorizationError, MissingToolError, UsageError):
                raise
            except XpkError as error:
                if once:
                    raise
                outage.pause_or_raise(error)
                continue
            outage.end()
            yield done
            if isinstance(done.action, Done) or (once and isinstance(done.action, Stay)):
                return
            if not done.is_changed:
                is_quiet = isinstance(done.action, Stay) and not done.action.reason
                pause(_QUIET_SECONDS if is_quiet else _PAUSE_SECONDS)

    def move(self, cluster: str) -> None:
        """Decide for a cluster. Raises UsageError for another one, ConflictError if the workload has ended."""
        if cluster not in self.spec.clusters:
            raise UsageError(
                f"workload '{self.name}' has no copy on cluster '{cluster}'",
                hint=f"choose from {', '.join(self.spec.clusters)}",
            )
        for _ in range(_TRIES):
            scene = self.observe()
            lease = scene.lease if scene.lease and scene.lease.run == self.spec.run else None
            if lease and lease.end:
                raise ConflictError(f"workload '{self.name}' has ended: {lease.end}")
            view = scene.views[cluster]
            if view.state in (CopyState.MISSING, CopyState.UNREACHABLE):
                why = view.reason or "it was deleted"
                raise NotFoundError(f"the copy of workload '{self.name}' on cluster '{cluster}' is {view.state}: {why}")
            if lease and lease.cluster == cluster:
                return
            earlier = scene.lease or Lease(self.spec.run, 0, "")
            decision = replace(next_lease(earlier, scene.views, cluster), run=self.spec.run, moves=0, end="")
            if leasing.write(self._file, decision, scene.version):
                return
        raise ConflictError("the lease is modified concurrently every time", hint="run the command again")

    def end(self, reason: str) -> None:
        """Decide that nothing is released any more. Raises ConflictError if others write the lease every time."""
        for _ in range(_TRIES):
            version, lease = leasing.read(self._file)
            if lease is None or lease.run != self.spec.run:
                lease = Lease(self.spec.run, lease.epoch if lease else 0, self.spec.cluster)
            if lease.end or leasing.write(self._file, replace(lease, since=None, end=reason), version):
                return
        raise ConflictError("the lease is modified concurrently every time", hint="run the command again")

    def _do(self, action: Action, scene: Scene) -> bool:
        """Carry out an action; return whether it changed anything."""
        match action:
            case Decide(lease):
                return leasing.write(self._file, lease, scene.version)
            case Hold(clusters, epoch):
                return any([self._try(copying.hold, scene, cluster, epoch) for cluster in clusters])
            case Release(cluster, epoch):
                return self._try(copying.release, scene, cluster, epoch)
            case Remove(clusters):
                return any([self._try(copying.remove, scene, cluster) for cluster in clusters])
        return False

    def _try(self, change: Callable[..., bool], scene: Scene, cluster: str, *epoch: int) -> bool:
        try:
            return change(self._connect(cluster), scene.copies[cluster], *epoch)
        except (NotFoundError, ConflictError, UnavailableError, TimedOutError):
            return False  # the next pass sees what has happened


def look_at_copies(connect: Connect, name: str, namespace: str, spec: CopySpec) -> dict[str, Copy]:
    """Read all copies of a workload, by cluster; an unreachable cluster is the state of its copy."""
    return {cluster: _look(connect, cluster, name, namespace, spec.run) for cluster in spec.clusters}


def _look(connect: Connect, cluster: str, name: str, namespace: str, run: str) -> Copy:
    try:
        api = connect(cluster)
    except XpkError as error:
        return Copy(CopyView(CopyState.UNREACHABLE, reason=error.message))
    return copying.look(api, name, namespace, run)
