"""The simulated world: virtual time, the store in memory, and a daemon that may crash at any write."""

from __future__ import annotations

import functools
import heapq
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random

from tests.local.cases import set_up
from tests.simulation.machine import Machine
from tests.simulation.properties import Properties
from tests.simulation.queues import CHIPS, set_up_cohort
from xpk.api.base import Change
from xpk.local import clock, controllers, usage
from xpk.local import objects as o
from xpk.local.api import LocalApi
from xpk.local.cache import Cache
from xpk.local.store import SCHEMA, Transaction
from xpk.model.usage import Record

EPOCH = 1_800_000_000.0
_SETTLING = 50  # passes after an event, until one changes nothing
_PASS_SECONDS = 0.03  # from one pass to the next, as in the daemon
_numbers = itertools.count()  # of the stores of this process


class Crashed(Exception):
    """The daemon was killed."""


class Clock:
    """Virtual time, which moves on by a microsecond with every look, and random numbers of a seed."""

    def __init__(self, rng: Random) -> None:
        self.now = EPOCH  # of the world
        self.shift = 0.0  # of the machine's clock: it was set
        self._rng, self._looks = rng, 0

    def time_ns(self) -> int:
        self._looks += 1
        return int((self.now + self.shift) * 1e9) + 1000 * (self._looks % 10_000)

    def random_bytes(self, count: int) -> bytes:
        return self._rng.randbytes(count)


class _Transaction(Transaction):
    """A transaction that is cut off at a write."""

    def __init__(self, db: sqlite3.Connection, cache: Cache, crash_after: int | None) -> None:
        super().__init__(db, cache)
        self._crash_after = crash_after

    def _log(self, change: Change, kind: str, text: str) -> int:
        if self._crash_after is not None and self.writes >= self._crash_after:
            raise Crashed
        return super()._log(change, kind, text)


class _Connection:
    """One connection to a store in memory, as the daemon has one and each user another."""

    def __init__(self, address: str) -> None:
        self._db = sqlite3.connect(address, isolation_level=None, uri=True)
        self._cache = Cache()
        self._db.executescript(SCHEMA)

    def revision(self) -> int:
        """Return the number of the newest change."""
        (number,) = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'changes'").fetchone()
        return int(number)

    @contextmanager
    def transaction(self, crash_after: int | None = None) -> Iterator[Transaction]:
        """Run the block on one state of the store; an exception rolls it back."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield _Transaction(self._db, self._cache, crash_after)
            self._db.execute("COMMIT")
        except BaseException:
            self._cache.clear()
            self._db.execute("ROLLBACK")
            raise


class _Api(LocalApi):
    """The API of the simulated cluster."""

    def __init__(self, world: World) -> None:
        super().__init__(Path("simulated"))
        self._world = world

    @contextmanager
    def _change(self, kind: str, *, dry_run: bool = False) -> Iterator[Transaction]:
        with self._world.transaction() as tx:
            yield tx


class World:
    """A cluster of `slices` node pools with `hosts` nodes each, and one queue or several of a cohort."""

    def __init__(self, seed: int | str, slices: int, hosts: int, queues: int = 1) -> None:
        self.rng, self.slices, self.hosts = Random(seed), slices, hosts
        self.clock = Clock(Random(f"{seed}/clock"))
        self.machine = Machine(self)
        self.properties = Properties(self)
        self.api = _Api(self)
        self.passes = self.events = 0
        self.crash_share = 0.0  # of the passes
        self.daemon_runs = True
        self.ledger: dict[str, Record] = {}  # files of the usage ledger
        self._recorded: list[str] = []  # those that the last pass wrote
        self._trace = sha256()
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._scheduled = 0
        self._wake: set[int] = set()  # planned looks at the time
        self._seen = 0, 0.0  # revision of the store and shift of the clock in the last pass
        self._started: set[str] = set()  # by this daemon, since its start
        self._address = f"file:world-{next(_numbers)}?mode=memory&cache=shared"
        self._users, self._daemon = _Connection(self._address), _Connection(self._address)
        with clock.replaced(self.clock):
            set_up(self.api, slices, hosts)
            if queues > 1:
                set_up_cohort(self.api, Random(f"{seed}/queues"), queues, self.chips)

    @property
    def chips(self) -> int:
        """Chips of all nodes."""
        return self.slices * self.hosts * CHIPS

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self.clock.now - EPOCH

    @property
    def digest(self) -> str:
        """A digest of everything that has happened."""
        return self._trace.hexdigest()

    def note(self, *what: object) -> None:
        """Add a line to the trace."""
        self._trace.update(f"{self.now:.6f} {what}\n".encode())

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Schedule an action. If it returns False, it has changed nothing that the daemon sees."""
        self._scheduled += 1
        heapq.heappush(self._heap, (self.now + seconds, self._scheduled, action))

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Run the block of a user on one state of the store; an exception rolls it back."""
        return self._users.transaction()

    def run(self, until: float) -> None:
        """Let the world live until a time."""
        with clock.replaced(self.clock):
            while self._heap and self._heap[0][0] <= until:
                at, _, action = heapq.heappop(self._heap)
                self.clock.now = max(self.clock.now, EPOCH + at)
                self.events += 1
                if action() is not False:
                    self.settle()
            self.clock.now = max(self.clock.now, EPOCH + until)

    def settle(self) -> None:
        """Let the daemon pass until it changes nothing."""
        for _ in range(_SETTLING):
            if not self.daemon_runs or not self._pass():
                return
            self.clock.now += _PASS_SECONDS
        self.properties.fail("the controllers do not settle")

    def start_daemon(self) -> None:
        """Start the daemon after a crash: it has no memory."""
        self.daemon_runs, self._started, self._daemon = True, set(), _Connection(self._address)
        self._recorded = []

    def _pass(self) -> bool:
        """Make one pass of the daemon; return whether it changed anything."""
        self.passes += 1
        is_fatal = self.rng.random() < self.crash_share
        crash_after = self.rng.randrange(12) if is_fatal else None
        try:
            with self._daemon.transaction(crash_after) as tx:
                usage.forget(tx, self._recorded)
                hosts = {
                    pod["metadata"]["uid"]: self.machine.observe(pod, self._started)
                    for pod in tx.list("Pod")
                    if not o.has_ended(pod)
                }
                result = controllers.reconcile(tx, hosts)
                seen, self._seen = self._seen, (self._daemon.revision(), self.clock.shift)
                if seen != self._seen:
                    self._plan_timers(tx)
                self.properties.check(tx, is_changed=seen != self._seen)
                writes = tx.writes
            self.note("pass", writes, sorted(result.startable))
            acted = self._act(result, self.rng.randrange(4) if is_fatal else None)
            self.ledger |= result.usage
            self._recorded = list(result.usage)
            return acted or bool(writes)
        except Crashed:
            self.note("the daemon crashes")
            self.daemon_runs = False
            self.after(self.rng.choice((0.1, 1.0, 60.0, 600.0)), self.start_daemon)
            return False

    def _act(self, result: controllers.Pass, crash_after: int | None) -> bool:
        """End and start hosts; return whether one was. Raises Crashed after so many of them."""
        acted = 0
        for group in result.groups:
            for pod in result.to_end(group):
                acted += self.machine.terminate(pod)
            for pod in result.to_start(group):
                if acted == crash_after:
                    raise Crashed
                uid = pod["metadata"]["uid"]
                if uid not in self._started and self.machine.state(uid) in ("absent", "prepared"):
                    self._started.add(uid)
                    self.machine.launch(pod)
                    acted += 1
        return acted > 0

    def _plan_timers(self, tx: Transaction) -> None:
        """Wake the daemon when the time alone makes a difference. The real one passes every second."""
        for jobset in tx.list("JobSet"):
            status = jobset.get("status", {})
            times = [status["nextAttemptAt"]] if "nextAttemptAt" in status else []
            waits = [-o.age(at) for at in times]
            if end := o.condition(jobset, status.get("terminalState", "")):
                waits.append(
                    max(5.0, jobset["spec"].get("ttlSecondsAfterFinished", 0)) - o.age(end["lastTransitionTime"])
                )
            self._wake_at(waits)
        for workload in tx.list("Workload"):
            ready = o.condition(workload, "PodsReady")
            if ready.get("reason") == "WaitForRecovery":
                age = o.age(ready["lastTransitionTime"])
                self._wake_at([5.0 - age, 1800.0 - age])

    def _wake_at(self, waits: list[float]) -> None:
        for wait in waits:
            key = round(self.now + wait)
            if wait > 0 and key not in self._wake:
                self._wake.add(key)
                self.after(wait + 0.01, functools.partial(self._wake.discard, key))
