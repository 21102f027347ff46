"""A simulated fleet whose workloads, capacity and clock change while the writer of its ledger crashes."""

from __future__ import annotations

import copy
import heapq
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from xpk.local import usage
from xpk.local.usage_book import Book
from xpk.model.usage import MICROSECONDS, Holding, Record, State, Supply, encode
from xpk.storage import Folder
from xpk_shared.storage import open_place

EPOCH = 1_800_000_000 * MICROSECONDS
SECOND, HOUR = MICROSECONDS, 3600 * MICROSECONDS
MONTH = 730 * HOUR
CHIPS = 16  # of a slice
_REASONS = ("preempted", "suspended", "evicted", "deleted")


class MemoryFolder(Folder):
    """A folder in memory. `tear`: how many bytes of the next write arrive before its writer is killed."""

    def __init__(self) -> None:
        super().__init__(open_place(Path("ledger")))
        self.files: dict[str, bytes] = {}
        self.tear: int | None = None

    def write(self, path: str, content: bytes) -> None:
        tear, self.tear = self.tear, None
        self.files[path] = content[:tear]
        if tear is not None:
            raise Killed

    def read_all(self, folder: str, *, first: str = "") -> dict[str, bytes]:
        pairs = ((path.removeprefix(f"{folder}/"), content) for path, content in self.files.items())
        return dict(sorted((name, content) for name, content in pairs if "/" not in name and name >= first))


class Killed(Exception):
    """The writer of the ledger was killed."""


class Writer:
    """The daemon's part: its store survives a crash, and a file may be cut off by one."""

    def __init__(self, folder: MemoryFolder, rng: Random) -> None:
        self._folder, self._rng = folder, rng
        self._book, self._ended = Book(), dict[str, Record]()  # as committed
        self._numbers = itertools.count()
        self._written: list[str] = []

    def look(self, now: int, holdings: dict[str, Holding], supply: Supply, *, crashes: bool) -> bool:
        """Make a pass; return whether the writer survives it."""
        book, ended = copy.deepcopy(self._book) if crashes else self._book, dict(self._ended)
        for name in self._written:
            ended.pop(name, None)
        for record in book.advance(now, holdings, supply):
            ended[f"{next(self._numbers):09d}"] = record
        point = self._rng.randrange(3) if crashes else None
        if point == 0:  # before the transaction
            self._written = []
            return False
        self._book, self._ended = book, ended
        if crashes and ended:
            self._folder.tear = self._rng.randrange(len(encode(ended.values())))
        try:
            self._written = [] if point == 1 else usage.write(self._folder, ended)
        except Killed:
            self._written = []
        self._folder.tear = None
        return not crashes

    def open_records(self, now: int) -> list[Record]:
        return [*self._ended.values(), *self._book.open_records(now)]


class Fleet:
    """A cluster of up to 64 slices over simulated time; `held` and `capacity` are the true chip-microseconds."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now, self.shift = Random(seed), EPOCH, 0
        self.folder = MemoryFolder()
        self.writer = Writer(self.folder, self.rng)
        self.slices, self.held, self.capacity, self.crashes = 24, 0, 0, 0
        self.workloads: dict[str, Holding] = {}
        self.lives: dict[str, tuple[int, int]] = {}  # begin and end of each workload that has ended
        self._numbers = itertools.count()
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._is_down = False
        for action, hours in ((self._submit, 12), (self._resize, 150), (self._set_clock, 350), (self._preempt, 60)):
            self._repeat(action, hours * HOUR)

    @property
    def wall(self) -> int:
        """The time on the writer's clock."""
        return self.now + self.shift

    @property
    def free(self) -> int:
        return self.slices - sum(one.chips for one in self._holders()) // CHIPS

    def run(self, until: int) -> None:
        while self._heap[0][0] <= until:
            at, _, action = heapq.heappop(self._heap)
            self._pass_to(at)
            action()
            self._admit()
            if not self._is_down:
                self._look()
        self._pass_to(until)
        self._is_down = False
        self._look(crash_share=0.0)

    def _look(self, crash_share: float = 0.02) -> None:
        crashes = self.rng.random() < crash_share
        supply = Supply(chips={"v5p-32": self.slices * CHIPS}, slices={"v5p-32": self.slices}, quotas={"red": 64})
        if not self.writer.look(self.wall, dict(self.workloads), supply, crashes=crashes):
            self.crashes += 1
            self._is_down = True
            self._after(self.rng.choice((1, 10, 60)) * SECOND, self._restart)

    def _restart(self) -> None:
        self._is_down = False

    def _holders(self) -> list[Holding]:
        return [one for one in self.workloads.values() if one.state is not State.QUEUED]

    def _pass_to(self, time: int) -> None:
        length = time - self.now
        self.held += length * sum(one.chips for one in self._holders())
        self.capacity += length * self.slices * CHIPS
        self.now = time

    def _after(self, delay: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._numbers), action))

    def _repeat(self, action: Callable[[], None], mean: float) -> None:
        def act() -> None:
            action()
            self._after(self._delay(mean), act)

        self._after(self._delay(mean), act)

    def _delay(self, mean: float) -> int:
        return 1 + round(self.rng.expovariate(1 / mean))

    def _submit(self) -> None:
        uid = f"w{next(self._numbers)}"
        self.workloads[uid] = Holding(
            uid=uid, workload=uid, namespace="default", queue=self.rng.choice(("red", "multislice-queue")),
            team=self.rng.choice(("red", "blue")), user=self.rng.choice(("ann", "bob")), accelerator_type="v5p-32",
            chips=self.rng.choice((1, 1, 2, 4, 12)) * CHIPS, state=State.QUEUED, created=self.wall,
        )  # fmt: skip

    def _admit(self) -> None:
        for uid, one in list(self.workloads.items()):
            if one.state is State.QUEUED and one.chips <= self.free * CHIPS:
                self._change(uid, State.START, one.reason)
                self._after(self._delay(90 * SECOND), partial(self._become, uid, State.START, State.RUNNING))
                self._after(self._delay(20 * HOUR), partial(self._fail, uid))
                self._after(self._delay(40 * HOUR), partial(self._end, uid))

    def _change(self, uid: str, state: State, reason: str = "") -> None:
        fields = {name: getattr(self.workloads[uid], name) for name in Holding.__dataclass_fields__}
        self.workloads[uid] = Holding(**fields | {"state": state, "reason": reason})

    def _become(self, uid: str, before: State, after: State) -> None:
        if uid in self.workloads and self.workloads[uid].state is before:
            self._change(uid, after)

    def _fail(self, uid: str) -> None:
        self._become(uid, State.RUNNING, State.DOWN)
        self._after(self._delay(120 * SECOND), lambda: self._become(uid, State.DOWN, State.RUNNING))

    def _preempt(self) -> None:
        running = [uid for uid, one in self.workloads.items() if one.state is State.RUNNING]
        if running:
            self._stop(self.rng.choice(running), "preempted")

    def _end(self, uid: str) -> None:
        self._stop(uid, self.rng.choice(_REASONS))

    def _stop(self, uid: str, reason: str) -> None:
        if uid not in self.workloads or self.workloads[uid].state in (State.QUEUED, State.STOP):
            return
        self._change(uid, State.STOP, reason)
        self._after(self._delay(20 * SECOND), lambda: self._release(uid))

    def _release(self, uid: str) -> None:
        if self.workloads[uid].reason == "preempted":
            self._change(uid, State.QUEUED, "preempted")
        else:
            self.lives[uid] = self.workloads.pop(uid).created, self.wall

    def _resize(self) -> None:
        self.slices = max(self.slices - self.free, min(64, self.slices + self.rng.randint(-6, 7)), 1)

    def _set_clock(self) -> None:
        self.shift += round(self.rng.choice((-1, 1)) * self.rng.expovariate(1 / 60) * SECOND)
