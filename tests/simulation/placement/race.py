"""A race: placers that crash, late and doubled writes, old reads, API servers that restart, stock-outs, wrong clocks.

A seed determines everything that happens in a race. While a placer waits for the answer to a request, other placers and
all controllers may act. Its write may be carried out much later, even after the placer has ended, or twice.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.placement.cluster import NAME, NAMESPACE, QUEUE, STEPS, Cluster
from xpk.api.base import Obj, Objs
from xpk.api.server_errors import GoneError
from xpk.jobs.placement.decision import Done
from xpk.jobs.placement.placer import Placer
from xpk.model import names
from xpk.model.errors import Modified, UnavailableError, XpkError
from xpk.model.specs import CopySpec

_MOVE_AFTER = 5.0  # seconds
_TURMOIL, _CALM = 60, 6000  # number of turns with faults, and limit of those without
_WRONG_CLOCK, _SET_CLOCK = 30.0, 1800.0  # seconds by which a clock is wrong, before and after it was set
_OUTAGE = 20.0  # seconds at most, and as long until all watches have begun again
_DEEPEST = 3  # of actions during a request of an action


class Violated(AssertionError):
    """A property does not hold."""


class Crash(BaseException):
    """A placer ends between two requests. No handler of errors catches this."""


class Race:
    """A workload on two or three clusters, and the placers that are about to place it."""

    def __init__(self, seed: str, *, checks_versions: bool = True) -> None:
        self.checks_versions = checks_versions  # False: API servers ignore them, as no real one does
        self.random, self.now, self.depth, self.faults = Random(seed), 1e9, 0, True
        self.late: list[Callable[[], object]] = []  # writes on their way
        self.lease: list[bytes] = [b""]  # content of each version of the lease
        self.released: dict[int, str] = {}  # cluster of each epoch
        self.suspended: set[str] = set()  # clusters on which its user has suspended it
        self.steps, self.requests, self.moves, self.crashes = 0, 0, 0, 0
        names_ = tuple("abc"[: self.random.choice((2, 2, 3))])
        shared = {"run": "run", "clusters": names_, "queue": QUEUE, "move_after_seconds": _MOVE_AFTER}
        specs = [CopySpec(cluster=one, **shared) for one in names_]  # type: ignore[arg-type]
        self.clusters = {spec.cluster: Cluster(spec, self.check) for spec in specs}
        self.outages: dict[str, tuple[float, float]] = {}  # ends of an API server's restart and of stale watches
        self.skews = [self.random.uniform(-_WRONG_CLOCK, _WRONG_CLOCK) for _ in range(self.random.randint(1, 4))]
        self.placers = [self._placer(specs[0], number) for number in range(len(self.skews))]

    def _placer(self, spec: CopySpec, number: int) -> Placer:
        """Return a placer whose clock is wrong by `skews[number]` seconds."""

        def connect(name: str) -> Any:
            return _Requests(self, self.clusters[name])

        return Placer(NAME, NAMESPACE, spec, _Lease(self), connect, clock=lambda: self.now + self.skews[number])

    def live(self) -> Race:
        """Run the race to its end. Raises Violated."""
        for _ in range(_TURMOIL):
            self.turn()
        self.faults = False
        self.skews = [0.0] * len(self.skews)
        self.recover()
        for write in self.late:
            _attempt(write)
        self.late.clear()
        self.random.choice(list(self.clusters.values())).has_capacity = True
        for name in self.suspended:  # its user resumes it
            if self.clusters[name].workload:
                self.clusters[name].patch("Workload", {"spec": {"active": True}})
        for _ in range(_CALM):
            if self.turn():
                return self
        raise Violated("the workload never ends although nothing fails any more")

    def turn(self) -> bool:
        """Let one thing happen; return whether a placer says that nothing is left to do."""
        self.now += self.random.uniform(0.0, 3.0)
        self.recover()
        chance = self.random.random()
        if chance < 0.3:
            return self.place()
        if self.faults and chance < 0.4:
            self.disturb()
        else:
            self.control()
        return False

    def place(self) -> bool:
        """Let a placer do a pass; it may crash at any request."""
        placer, depth = self.random.choice(self.placers), self.depth
        try:
            if self.faults and self.random.random() < 0.03:
                placer.move(self.random.choice(list(self.clusters)))
                return False
            if self.faults and self.random.random() < 0.004:
                placer.end("deleted by its user")
                return False
            return isinstance(placer.step().action, Done)
        except (Crash, XpkError) as error:
            self.depth = depth
            self.crashes += isinstance(error, Crash)
            return False

    def control(self) -> None:
        """Let controllers of a cluster act."""
        if not self.faults:
            for one in self.clusters.values():
                one.settle()
                self.train(one)
            return
        cluster = self.random.choice(list(self.clusters.values()))
        acts = (
            *(cluster.refresh, cluster.reconcile, cluster.deactivate, cluster.schedule, cluster.run_jobs),
            *(cluster.end_pods, lambda: self.train(cluster)),
        )
        for _ in range(self.random.randint(1, 4)):
            self.random.choice(acts)()

    def train(self, cluster: Cluster) -> None:
        """Let the hosts of a cluster do a step, and end after the last one."""
        if cluster.train():
            self.steps += 1
            if self.steps >= STEPS and (not self.faults or self.random.random() < 0.1):
                cluster.complete()

    def disturb(self) -> None:
        """Change what the placers rely on."""
        cluster = self.random.choice(list(self.clusters.values()))
        chance = self.random.random()
        if chance < 0.4:
            cluster.run_out()
        elif chance < 0.7:
            cluster.has_capacity = True
        elif chance < 0.8 and cluster.workload and cluster.is_released and not cluster.is_down:
            is_active = self.random.random() < 0.5
            cluster.patch("Workload", {"spec": {"active": is_active}})  # by its user
            (self.suspended.discard if is_active else self.suspended.add)(cluster.name)
        elif chance < 0.87:
            restarted = self.now + self.random.uniform(1.0, _OUTAGE)
            self.outages[cluster.name] = restarted, restarted + self.random.uniform(0.0, _OUTAGE)
            cluster.is_down = cluster.has_stale_watches = True
        elif chance < 0.9:
            self.skews[self.random.randrange(len(self.skews))] = self.random.uniform(-_SET_CLOCK, _SET_CLOCK)
        elif self.late:
            _attempt(self.late.pop(self.random.randrange(len(self.late))))

    def recover(self) -> None:
        """Let API servers run again whose restart has ended, and watches begin again; all of them after the faults."""
        for name, (restarted, watched) in [*self.outages.items()]:
            cluster = self.clusters[name]
            cluster.is_down &= self.faults and self.now < restarted
            cluster.has_stale_watches &= self.faults and self.now < watched
            if not cluster.has_stale_watches:
                del self.outages[name]

    def request(self, act: Callable[[], Any], *, writes: bool) -> Any:
        """Carry out a request of a placer, after anything else that happens meanwhile."""
        self.requests += 1
        if self.faults:
            while self.depth < _DEEPEST and self.random.random() < 0.25:
                self.depth += 1
                self.turn()
                self.depth -= 1
            chance = self.random.random()
            if chance < 0.02:
                raise Crash
            if writes and chance < 0.10:
                self.late.append(act)
                raise UnavailableError("no answer") if chance < 0.07 else Crash
            if chance > 0.98:
                _attempt(act)
                raise UnavailableError("the answer was lost")
            if writes and chance > 0.95:
                self.late.append(act)  # the client's retry of a request that was carried out
        return act()

    def check(self, cluster: Cluster) -> None:
        """Check the properties after a change. Raises Violated."""
        running = [one.name for one in self.clusters.values() if one.live_pods]
        if len(running) > 1:
            raise Violated(f"hosts run on {' and '.join(running)}")
        released = [one.name for one in self.clusters.values() if one.is_released]
        if len(released) > 1:
            raise Violated(f"copies are released on {' and '.join(released)}")
        annotations = cluster.jobset["metadata"]["annotations"] if cluster.jobset else {}
        if epoch := int(annotations.get(names.RELEASED_ANNOTATION, 0)):
            self.moves += epoch not in self.released
            if self.released.setdefault(epoch, cluster.name) != cluster.name:
                raise Violated(f"epoch {epoch} has released {self.released[epoch]} and {cluster.name}")


def _attempt(act: Callable[[], object]) -> None:
    try:
        act()
    except (XpkError, FileExistsError):
        return


class _Lease:
    """The lease of a race, as a file with versions."""

    def __init__(self, race: Race) -> None:
        self._race = race

    def look(self) -> tuple[int, bytes]:
        """Return a version and its content, sometimes an old one."""
        versions = self._race.lease

        def read() -> tuple[int, bytes]:
            is_old = self._race.faults and self._race.random.random() < 0.1
            version = self._race.random.randrange(len(versions)) if is_old else len(versions) - 1
            return version, versions[version]

        answer: tuple[int, bytes] = self._race.request(read, writes=False)
        return answer

    def put(self, content: bytes, over: int) -> int:
        """Write over a version. Raises FileExistsError if there is another one."""

        def write() -> int:
            if over != len(self._race.lease) - 1:
                raise FileExistsError
            self._race.lease.append(content)
            return over + 1

        version: int = self._race.request(write, writes=True)
        return version


class _Requests:
    """The API server of a cluster as a placer reaches it."""

    def __init__(self, race: Race, cluster: Cluster) -> None:
        self._race, self._cluster = race, cluster

    def _request(self, act: Callable[[], Any], *, writes: bool) -> Any:
        """Carry out a request. Raises what an API server answers that has just begun again."""

        def attempt() -> Any:
            if self._cluster.is_down:
                raise UnavailableError("connection refused")
            if self._cluster.has_stale_watches and self._race.random.random() < 0.2:
                raise Modified("409: modified concurrently") if writes else GoneError("410: too old resource version")
            return act()

        return self._race.request(attempt, writes=writes)

    def get(self, kind: str, name: str, namespace: str) -> Obj:
        """Return the JobSet."""
        obj: Obj = self._request(lambda: self._cluster.find(kind), writes=False)
        return obj

    def list(self, kind: str, *args: object, **options: object) -> Objs:
        """Return Kueue's Workload, or the pods."""

        def read() -> Objs:
            objects = self._cluster.pods if kind == "Pod" else [self._cluster.workload]
            return [obj for obj in objects if obj]

        matching: Objs = self._request(read, writes=False)
        return matching

    def patch(self, kind: str, name: str, change: Obj, namespace: str) -> Obj:
        """Change an object."""
        if not self._race.checks_versions:
            change = {**change, "metadata": {**change["metadata"], "resourceVersion": None}}
        changed: Obj = self._request(lambda: self._cluster.patch(kind, change), writes=True)
        return changed

    def delete(self, kind: str, name: str, namespace: str) -> None:
        """Delete the copy."""
        self._request(self._cluster.delete, writes=True)
