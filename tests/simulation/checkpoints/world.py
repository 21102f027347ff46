"""The life of one simulated job: attempts that crash and overlap, a disk that is full or slow, and damaged files."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest import mock

from tests.simulation.checkpoints.hosts import Attempt
from tests.simulation.checkpoints.properties import Properties
from tests.simulation.checkpoints.schedule import Schedule

_ATTEMPTS = 12
_MEMORY = Path("/dev/shm")


class World:
    """A job of `slices` with `hosts` each."""

    def __init__(self, seed: str, root: Path) -> None:
        self.rng, self.root = Random(seed), root
        self.slices, self.hosts = self.rng.choice(((1, 1), (1, 2), (2, 1), (2, 2)))
        self.keep, self.steps = self.rng.randint(1, 3), self.rng.randint(1, 8)
        self.schedule = Schedule(self.rng, str(root))
        self.properties = Properties(self)
        self.attempts = self._nodes_used = 0
        self.is_faulty = True
        self.newest: Attempt | None = None
        self._all: list[Attempt] = []
        self._nodes: list[Path] = []
        self._calm = self.rng.choice((100, 300, 1000))  # changes of files between two faults of a kind
        self.schedule.torn_share = 5 / self._calm  # about as often as hosts are killed
        (root / "out").mkdir()

    @property
    def is_running(self) -> bool:
        """Return whether a host of any attempt runs."""
        return any(attempt.is_running for attempt in self._all)

    @property
    def trace(self) -> list[str]:
        """The processes in the order in which they ran."""
        return self.schedule.trace

    def live(self) -> None:
        """Run all attempts; the last one runs alone and without faults, and must save everything."""
        try:
            while self.attempts < _ATTEMPTS or self.is_running:
                if not self.schedule.step():
                    self._begin()
                for fault, weight in _FAULTS:
                    if self.rng.random() < weight / self._calm:
                        fault(self)
            self.schedule.is_full = self.is_faulty = False
            self.schedule.torn_share = 0.0
            self._begin()
            while self.schedule.step():
                pass
        finally:
            self.schedule.kill_all()

    def _begin(self) -> None:
        """Begin an attempt. Hosts of an earlier one that still run keep their nodes."""
        count = self.slices * self.hosts
        is_taken = [any(not a.tasks[n].has_ended for a in self._all) for n in range(count)]
        nodes = [self._new_node() if taken or not self._nodes else self._nodes[n] for n, taken in enumerate(is_taken)]
        self.properties.on_begin(has_new_nodes=nodes != self._nodes)
        self._nodes, number = nodes, self.attempts
        self.attempts += 1
        for other in self._all:
            other.is_alone = False
        self.newest = Attempt(self, number, nodes)
        self._all = [*(attempt for attempt in self._all if attempt.is_running), self.newest]

    def _new_node(self) -> Path:
        self._nodes_used += 1
        node = self.root / f"node-{self._nodes_used}"
        node.mkdir()
        return node

    def _kill(self) -> None:
        if self.schedule.tasks:
            self.rng.choice(self.schedule.tasks).is_killed = True

    def _overlap(self) -> None:
        if self.attempts < _ATTEMPTS:
            self._begin()

    def _slow(self) -> None:
        """Let the disk of a host become slow, or fast again: other hosts and attempts do much meanwhile."""
        if self.schedule.tasks:
            task = self.rng.choice(self.schedule.tasks)
            task.is_slow = not task.is_slow

    def _fill(self) -> None:
        self.schedule.is_full = not self.schedule.is_full

    def _damage(self) -> None:
        """Damage a file of a checkpoint, or of a local one."""
        steps = [path for path in (self.root / "out" / "checkpoints").glob("*") if path.name.isdigit()]
        local = [path for node in self._nodes for path in node.glob("xpk-*/s*/*") if path.is_dir()]
        if folders := sorted(self.rng.choice((steps, local))):
            folder = self.rng.choice(folders)
            if files := sorted(path for path in folder.rglob("*") if path.is_file()):
                change = self.rng.choice((_flip, _cut))
                change(self.rng.choice(files))
                step = int(folder.name.rpartition("-")[2])
                if folder in steps:
                    self.properties.on_damage(step, has_sizes=change is _flip)
                else:
                    self.properties.on_local_damage(step)


_FAULTS = (
    *((World._kill, 1.0), (World._fill, 0.5), (World._damage, 1.0)),
    *((World._overlap, 0.5), (World._slow, 1.0)),
)


def _flip(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([(content[-1] + 1) % 256]) if content else b"x")


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def live(seed: str) -> World:
    """Simulate one job's life. Raises Violated."""
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        with _seeded_uuids(Random(f"{seed}/uuids")), contextlib.redirect_stdout(io.StringIO()):
            world = World(seed, folder)
            world.live()
            return world
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _seeded_uuids(rng: Random) -> Iterator[None]:
    """Let the names of sessions follow from the seed, because their order decides between equal steps."""

    def new() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    with mock.patch("uuid.uuid4", new):
        yield
