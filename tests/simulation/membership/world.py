"""A run of elastic slices in virtual time, with faults."""

from __future__ import annotations

import functools
from random import Random

import numpy as np

from tests.simulation.membership.clock import Clock
from tests.simulation.membership.exchange import Exchange
from tests.simulation.membership.links import Supervisor
from tests.simulation.membership.properties import REGISTRY, SILENT_SECONDS, STALE_SECONDS, Properties
from tests.simulation.membership.trainer import Trainer
from trainer.elastic.reduction import Share, Vector
from trainer.hosts.membership import Peer
from xpk_shared.slices.roster import quorum

_START_SECONDS, _FAULTY_SECONDS = 10.0, 40.0
_QUIET_SECONDS = 100.0  # in which all slices must be active again
# Methods of World, and how often they happen.
_FAULTS = {
    "kill": 3,
    "freeze": 4,
    "freeze_registry": 2,
    "freeze_both": 2,
    "kill_both": 1,
    "stall": 2,
    "cut_off": 1,
    "split": 1,
    "slow_registry": 1,
}
_LOOK_SECONDS, _CALM_SECONDS = 1.0, 5.0


class World:
    """A run of `num_slices`, of which at least `min_slices` train."""

    def __init__(self, seed: str, faults: tuple[str, ...] = ()) -> None:
        """`faults`: the only kinds that happen, by default all."""
        self.rng = Random(seed)
        self.clock = Clock(self.rng)
        self.num_slices = self.rng.randint(2, 5)
        self.min_slices = self.rng.randint(1, self.num_slices)
        self.step_seconds = self.rng.choice((0.3, 0.6, 1.0))
        self.properties = Properties(self)
        self.quorum = quorum(self.num_slices, self.min_slices)
        self.trace: list[str] = []
        self.epoch = self._founded = self._saved = 0
        self.listeners: list[Exchange] = []
        self._starts, self._faults = 0, faults
        self._faulty_at: dict[str, float] = {}  # end of the newest fault of an incarnation
        self._cut_off_at: dict[str, float] = {}  # end of the newest silence between one and the registry
        self.trainers: dict[int, Trainer] = {}
        self.registry = Supervisor(self)
        for number in range(self.num_slices):
            self._start(number)

    def live(self) -> None:
        """Let the slices train, first without faults, then with them, then without."""
        self.clock.run(_START_SECONDS)
        self.require_all("at the start")
        while self.clock.now < _START_SECONDS + _FAULTY_SECONDS:
            for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
                self._fail()
                self.properties.on_fault()
                self._pass(self.rng.choice((0.0, 0.5, 2.0)) * self.rng.random())
            self._pass(self.rng.choice((1.0, 5.0, 20.0)) * self.rng.random())
        ends = [*self._faulty_at.values(), *self._cut_off_at.values(), self.clock.split_until]
        self.clock.run(max(self.clock.now, *ends, 0.0) + _CALM_SECONDS)
        deadline = self.clock.now + _QUIET_SECONDS
        while self.clock.now < deadline and self.problem():
            self.clock.run(self.clock.now + _LOOK_SECONDS)
        self.clock.run(self.clock.now + _CALM_SECONDS)
        self.require_all("in the end")

    def _pass(self, seconds: float) -> None:
        """Let time pass until the next fault."""
        self.clock.run(self.clock.now + seconds)
        self.properties.check_progress()

    def require_all(self, when: str) -> None:
        """Require that all slices are active in one view, and that steps go on."""
        problem = self.problem()
        self.properties.require(not problem, f"{when}: {problem}")

    def problem(self) -> str:
        """Return what is not as it is without faults, or ""."""
        sets = set[frozenset[Peer]]()
        for number, trainer in self.trainers.items():
            if not trainer.is_active:
                return f"slice {number} is not active"
            sets.add(frozenset(trainer.membership.active))
        if len(sets) > 1:
            return "the slices see different ones"
        has_stopped = self.clock.now - self.properties.completed_at > 2 * self.step_seconds + 1.0
        return f"no step since {self.properties.completed_at:.3f} s" if has_stopped else ""

    def listen(self, exchange: Exchange) -> int:
        """Return the port of a slice's connections."""
        self.listeners.append(exchange)
        return len(self.listeners) - 1

    def share(self, step: int, replica: int) -> Share:
        """Return a share of a step's gradient."""
        return Share(np.full(self.num_slices, step % 1000 + replica / 8, np.float32), [1.0])

    def total(self, step: int) -> Vector:
        """Return the sum of all shares of a step."""
        return _total(step % 1000, self.num_slices)

    def save(self, trainer: Trainer) -> None:
        """Keep a checkpoint."""
        if not self.has_newer(trainer):
            self._saved = max(self._saved, trainer.at)

    def has_newer(self, trainer: Trainer) -> bool:
        """Return whether another active slice, which was not frozen, belongs to a later start of the run."""
        return any(
            other.is_active and other.epoch > trainer.epoch and not self.was_faulty(other.own, SILENT_SECONDS)
            for other in self.trainers.values()
        )

    def on_found(self, trainer: Trainer) -> tuple[int, int]:
        """Begin the run, or begin it again from the newest checkpoint; return its step and the number of the start."""
        self.note(f"{trainer.own} begins with step {self._saved}")
        self._founded += 1
        if trainer.own not in self.registry.present and self.was_faulty(trainer.own, STALE_SECONDS):
            return self._saved, self._founded  # it has not read yet that it was dropped
        self.properties.on_found(trainer)
        self.epoch = self._founded
        return self._saved, self.epoch

    def on_end(self, trainer: Trainer, reason: str) -> None:
        """End a trainer for a reason of its own; its supervisor starts it again."""
        self.note(f"{trainer.own} ends: {reason}")
        self.properties.on_end(trainer, reason)
        trainer.process.kill()
        self._restart(trainer)

    def was_faulty(self, peer: Peer, seconds: float) -> bool:
        """Return whether a slice had a fault within so many seconds."""
        return self.clock.now - self._faulty_at.get(peer[1], -1000.0) <= seconds

    def was_cut_off(self, peer: Peer, seconds: float) -> bool:
        """Return whether nothing passed between a slice and the registry within so many seconds."""
        return self.clock.now - self._cut_off_at.get(peer[1], -1000.0) <= seconds

    def was_split(self, seconds: float) -> bool:
        """Return whether the network was split within so many seconds."""
        return bool(self.clock.far) and self.clock.now - self.clock.split_until <= seconds

    def note(self, text: str) -> None:
        """Add to the trace."""
        self.trace.append(f"{self.clock.now:8.3f} {text}")

    def _start(self, number: int) -> None:
        self._starts += 1
        self.trainers[number] = Trainer(self, number, f"{number}.{self._starts}")

    def _restart(self, trainer: Trainer) -> None:
        """Start a slice again, as its supervisor does; a new pod of slice 0 host 0 starts its trainer itself."""
        number, pause = trainer.own[0], self.rng.uniform(0.2, 3.0)

        def start() -> None:
            if self.trainers[number] is not trainer:
                return
            if number or self.registry.process.runs:
                self._start(number)
            elif self.registry.process.is_alive:  # its supervisor is frozen, too
                self.clock.at(self.registry.process.frozen_until, start)

        self.clock.at(self.clock.now + pause, start)

    def _fail(self) -> None:
        faults = {kind: weight for kind, weight in _FAULTS.items() if not self._faults or kind in self._faults}
        getattr(self, f"_{self.rng.choices([*faults], [*faults.values()])[0]}")()

    def _kill(self, number: int | None = None) -> None:
        number = self.rng.randrange(self.num_slices) if number is None else number
        trainer = self.trainers[number]
        if trainer.process.is_alive:
            with_node = self.rng.random() < 0.2
            self.note(f"kill of {trainer.own}{' with its node' if with_node else ''}")
            self._mark(trainer, 0.0)
            trainer.process.kill(with_node=with_node)
            self._restart(trainer)

    def _freeze(self, number: int | None = None, seconds: float | None = None) -> None:
        trainer = self.trainers[self.rng.randrange(self.num_slices) if number is None else number]
        seconds = self._freeze_seconds() if seconds is None else seconds
        if trainer.process.is_alive:
            self.note(f"freeze of {trainer.own} for {seconds:.3f} s")
            self._mark(trainer, seconds)
            trainer.process.freeze(seconds)

    def _freeze_registry(self, seconds: float | None = None) -> None:
        seconds = self._freeze_seconds() if seconds is None else seconds
        if not self.registry.process.is_alive:
            return
        self.note(f"freeze of the registry for {seconds:.3f} s")
        self._faulty_at[REGISTRY[1]] = max(self._faulty_at.get(REGISTRY[1], 0.0), self.clock.now + seconds)
        self.registry.process.freeze(seconds)

    def _freeze_both(self) -> None:
        seconds = self._freeze_seconds()
        self._freeze_registry(seconds)
        self._freeze(0, seconds)

    def _kill_both(self) -> float:
        """Lose the pod of slice 0 host 0; return when a new one comes up."""
        registry = self.registry
        if not registry.process.is_alive:
            return self.clock.now
        self.note("kill of the registry")
        pause = self.rng.uniform(1.0, 12.0)
        self._faulty_at[REGISTRY[1]] = self.clock.now + pause
        registry.process.kill(with_node=self.rng.random() < 0.3)
        self._kill(0)

        def start() -> None:
            self.note("start of a registry")
            self.registry = Supervisor(self)
            self._start(0)

        self.clock.at(self.clock.now + pause, start)
        return self.clock.now + pause

    def _stall(self) -> None:
        seconds = self.rng.uniform(0.2, 1.2)
        self.note(f"stall of everything for {seconds:.3f} s")
        for process in (self.registry.process, *(trainer.process for trainer in self.trainers.values())):
            process.freeze(seconds + self.rng.uniform(0.0, 0.1))

    def _cut_off(self) -> None:
        """Let nothing arrive between a slice and the registry for a time, although both run."""
        trainer, seconds = self.trainers[self.rng.randrange(self.num_slices)], self.rng.uniform(1.0, 10.0)
        if trainer.cut_off(seconds):
            self.note(f"silence between {trainer.own} and the registry for {seconds:.3f} s")
            self._cut_off_at[trainer.own[1]] = self.clock.now + seconds

    def _split(self) -> None:
        """Let nothing pass for a time between some slices and the others, which keep the registry."""
        if self.clock.now < self.clock.split_until or self.num_slices < 2:
            return
        seconds, others = self.rng.uniform(1.0, 20.0), range(1, self.num_slices)
        far = frozenset(self.rng.sample(others, self.rng.randint(1, len(others))))
        self.note(f"split of slices {sorted(far)} from the others for {seconds:.3f} s")
        self.clock.far, self.clock.split_until = far, self.clock.now + seconds
        for number in far:
            self._mark(self.trainers[number], seconds)

    def _slow_registry(self) -> None:
        """Lose the pod of slice 0 host 0; the registry of the new one is frozen soon after its start."""
        if not self.registry.process.is_alive:
            return
        former, seconds = self.registry, self.rng.uniform(0.5, 10.0)

        def freeze() -> None:
            if self.registry is not former:
                self._freeze_registry(seconds)

        self.clock.at(self._kill_both() + self.rng.uniform(0.0, 3.0), freeze)

    def _freeze_seconds(self) -> float:
        low, high = self.rng.choice(((0.5, 2.0), (1.3, 3.0), (2.0, 10.0), (10.0, 30.0)))
        return self.rng.uniform(low, high)

    def _mark(self, trainer: Trainer, seconds: float) -> None:
        end = self.clock.now + seconds
        self._faulty_at[trainer.own[1]] = max(self._faulty_at.get(trainer.own[1], 0.0), end)


@functools.lru_cache(maxsize=10_000)
def _total(step: int, num_slices: int) -> Vector:
    total = np.zeros(num_slices, np.float32)
    for replica in range(num_slices):
        total += np.float32(step + replica / 8)
    return total


def live(seed: str, faults: tuple[str, ...] = ()) -> World:
    """Simulate one life, only with some kinds of faults if they are named. Raises Violated."""
    world = World(seed, faults)
    world.live()
    return world
