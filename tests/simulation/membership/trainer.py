"""The trainer of one slice: the loop of `trainer.elastic.train` without JAX, which waits in virtual time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.simulation.membership.clock import Lane, Process
from tests.simulation.membership.exchange import Exchange
from tests.simulation.membership.links import Client
from tests.simulation.membership.wires import delay
from trainer.elastic import handover
from trainer.elastic.decisions import Decisions
from trainer.elastic.handover import HandoverLost, Receiver
from trainer.elastic.reduction import Reductions, Result, Share
from trainer.hosts.bootstrap import Host
from trainer.hosts.membership import DONE, FOUNDER, HOLD, JOINER, TRAIN, Commit, Membership, Seq
from trainer.hosts.peers import Peers
from trainer.hosts.registry_loss import RegistryLoss
from xpk_shared.slices.registry import AWAITED_SECONDS
from xpk_shared.slices.roster import ACTIVE, READY

if TYPE_CHECKING:
    from tests.simulation.membership.world import World

_CONNECT_SECONDS, _SEND_SECONDS = 5.0, 2.0
_PARTS = 2  # of the state
_SAVE_EVERY = 5  # steps
_NOTHING = np.empty(0, np.float32)

# What the trainer's thread waits for: a condition, or a time.
Wait = tuple[Callable[[], Any], float]
Run = Generator[Wait, None, Any]


class _Loss(RegistryLoss):
    """Decisions without the registry, polled in virtual time."""

    def __init__(self, process: Process, *args: Any) -> None:
        super().__init__(*args)
        self._process, self._lane, self._lost_at = process, Lane(process), -1.0

    def start(self) -> None:
        """Do nothing: `begin` polls."""

    def begin(self) -> None:
        """Poll from now on, unless it does already."""
        super().begin()
        if self._lost_at < 0:
            self._lane.put(delay(self._process.clock), self._begin_polls)

    def _begin_polls(self) -> None:
        self._is_lost.clear()
        self._lost_at = self._process.clock.now
        self._poll_once()

    def _poll_once(self) -> None:
        if not self._client.is_connected:
            self._lane.put(0.1, self._poll_then_repeat)
            return
        self._forget()
        self._lost_at = -1.0
        if self._is_lost.is_set():
            self.begin()

    def _poll_then_repeat(self) -> None:
        self._poll(self._process.clock.now - self._lost_at)
        self._poll_once()


class _Membership(Membership):
    """A membership that wakes the trainer's thread after each change."""

    wake: Callable[[], None] = staticmethod(lambda: None)

    def _notify(self) -> None:
        super()._notify()
        self.wake()


class _Reductions(Reductions):
    """Reductions whose answers are sent by the simulation."""

    def _answer(self) -> None:
        """End at once, as a thread of its own."""

    def answer(self) -> None:
        """Send the newest result to the slices that have asked for it."""
        while not self._asked.empty():
            self._send_newest(self._asked.get())


class Trainer:
    """One start of a slice."""

    def __init__(self, world: World, number: int, incarnation: str) -> None:
        self.world, self.own, self.process = world, (number, incarnation), Process(world.clock, incarnation, number)
        self.at, self.epoch, self.is_joined = 0, -1, False  # finished steps; the start of the run that they belong to
        self._main, self._answers, self._loads = Lane(self.process), Lane(self.process), world.rng.uniform(0.2, 2.0)
        self._wait: Wait | None = None
        self._is_start, self._flags = True, dict[str, Any]()
        host = Host(world.num_slices, number, min_slices=world.min_slices, registry="registry:1")
        peers = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda text, peer: None)
        self.membership = _Membership(
            host,
            peers,
            self._end,
            client=functools.partial(Client, self.process, world),
            registry_loss=functools.partial(_Loss, self.process),
        )
        self.membership.wake = self._wake
        job: Any = SimpleNamespace(host=host, stop=SimpleNamespace(requested=False))
        self._decisions = Decisions(job, self.membership, SimpleNamespace(decide=lambda at: None))  # type: ignore[arg-type]
        self.receiver = Receiver(self.membership, lambda: world.clock.now)
        self.reductions: _Reductions | None = None
        self._run = self._train()
        self._main.put(world.rng.uniform(0.3, 2.0), self._resume)

    def cut_off(self, seconds: float) -> bool:
        """Let nothing pass between this slice and the registry for a time; return whether they were connected."""
        leader: Any = self.membership._leader
        return bool(self.process.is_alive and leader._client and leader._client.hold(seconds))

    @property
    def is_active(self) -> bool:
        """True while this slice is one of the active ones that it knows."""
        return self.process.is_alive and self.is_joined and self.own in self.membership.active

    @property
    def is_held(self) -> bool:
        """True while this slice waits for others before the next step."""
        return self._is_start or bool(self._flags.get("hold"))

    def _end(self, reason: str = "") -> None:
        if self.process.is_alive:
            self.world.on_end(self, reason)

    def _wake(self) -> None:
        if self._wait is not None:
            wait, self._wait = self._wait, None
            self._main.put(delay(self.world.clock) / 10, lambda: self._look(wait))

    def _look(self, wait: Wait) -> None:
        """Continue if what the thread waits for has come, else wait on."""
        if wait[0]() or self.world.clock.now >= wait[1]:
            self._resume()
        else:
            self._begin_wait(wait)

    def _begin_wait(self, wait: Wait) -> None:
        self._wait = wait
        if wait[1] < float("inf"):
            self.world.clock.at(wait[1], lambda: self._wake() if self._wait is wait else None)

    def _resume(self) -> None:
        try:
            wait = next(self._run)
        except StopIteration:
            return
        except HandoverLost as lost:
            self._end(f"lost {lost} while it sent the state")
            return
        self._begin_wait(wait)
        if wait[0]():
            self._wake()

    def _until(self, condition: Callable[[], Any], seconds: float = float("inf")) -> Wait:
        return condition, self.world.clock.now + seconds

    def _sleep(self, seconds: float) -> Wait:
        return self._until(lambda: False, seconds)

    def _train(self) -> Run:
        membership, world = self.membership, self.world
        exchange = self._exchange = Exchange(self.process, world, self.own, membership, self._receive)
        membership.views.append(self._connect)
        membership.is_heard = lambda peer: exchange.silence(peer) < AWAITED_SECONDS
        membership.enter([("slice", exchange.port)], self.own[1], lambda: "registry")
        yield self._until(lambda: membership.role)
        role = membership.role
        membership.is_leading = role == FOUNDER
        yield self._sleep(self._loads)
        connections: Any = exchange
        self.reductions = _Reductions(membership, connections, world.num_slices, np.float32)
        if role == JOINER:
            role = yield from self._join()
        if role == FOUNDER:
            yield from self._found()
        assert role != DONE
        while True:
            yield from self._step()

    def _connect(self, view: Any) -> None:
        entries = {(number, entry.incarnation): entry.hosts[0] for number, entry in view.slices.items()}
        self._exchange.expect({peer: host for peer, host in entries.items() if peer != self.own})

    def _receive(self, peer: Any, header: dict[str, Any], payload: memoryview) -> None:
        if header["kind"] == handover.KIND:
            self.receiver.receive(header, payload)
        elif self.reductions is not None:
            self.reductions.receive(peer, header, payload)
            self._answer()

    def _answer(self) -> None:
        if self.reductions and not self.reductions._asked.empty():
            self._answers.put(delay(self.world.clock), self.reductions.answer)

    def _found(self) -> Run:
        self._decisions.wait_for_all()
        self.membership.set_phase(ACTIVE)
        yield self._until(lambda: self.membership.is_accepted)
        self.at, self.epoch = self.world.on_found(self)
        self.is_joined = True
        self.membership.grant_self()
        yield from self._hold()

    def _join(self) -> Run:
        membership, receiver, reductions = self.membership, self.receiver, self.reductions
        assert reductions

        def are_open() -> bool:
            active = [(n, entry.incarnation) for n, entry in membership.view.slices.items() if entry.phase == ACTIVE]
            return all(map(self._exchange.generation, active))

        yield self._until(are_open, _CONNECT_SECONDS)
        membership.set_phase(READY)
        senders = [(number, entry) for number, entry in membership.view.slices.items() if entry.phase == ACTIVE]
        while len(receiver._parts) < _PARTS:
            if membership.role in (DONE, FOUNDER) and not receiver._parts:
                return membership.role
            receiver._check_progress(senders, is_awaited=reductions.has_pieces)
            version = membership.version
            yield self._until(lambda version=version: membership.version != version, 0.5)  # type: ignore[misc]
        position = receiver._position
        self.at, self.epoch, self._is_start = position["step"], position["epoch"], position["start"]
        commit = Commit(Seq(*position["seq"]), position["flags"])
        reductions.adopt(commit)
        membership.adopt(position["granted"], commit)
        self.is_joined = True
        membership.set_phase(ACTIVE)
        self._take(commit.flags)
        yield from self._hold()
        return JOINER

    def _step(self) -> Run:
        step, self._is_start = self.at + 1, False
        result: Result = yield from self._reduce(Seq(step, TRAIN), self.world.share, self.world.step_seconds, step)
        self.at = step
        self._take(result.flags)
        yield from self._hand_over(result.flags)
        yield from self._hold()
        if self._leads and step % _SAVE_EVERY == 0:
            self.world.save(self)

    def _hold(self) -> Run:
        newest = self.membership.commit.seq
        nth = newest.nth + 1 if newest[:2] == (self.at, HOLD) else 0
        while (self._is_start and not self._flags) or self._flags.get("hold"):
            version = self.membership.version
            yield self._until(lambda version=version: self.membership.version != version, 0.2)  # type: ignore[misc]
            result = yield from self._reduce(Seq(self.at, HOLD, nth), lambda at, replica: Share(_NOTHING, []), 0.0, 0)
            self._take(result.flags)
            yield from self._hand_over(result.flags)
            nth += 1

    def _reduce(self, seq: Seq, share: Callable[[int, int], Share], seconds: float, step: int) -> Run:
        reductions = self.reductions
        assert reductions

        def decide(facts: Mapping[int, Any]) -> dict[str, Any]:
            """Decide as the leading slice, and note for the properties which slices have added their shares."""
            assert call.attempt
            return self._decisions.decide(facts, at=seq.step) | {"set": call.attempt.active}

        call = reductions._begin(seq, lambda: {"stop": False, "disk_low": False, "saved": False}, decide)
        while True:
            missing, result = reductions._advance(call)
            self._answer()
            newest = reductions._newest
            if newest and newest[0] == seq:
                self.world.properties.on_result(self, seq, newest[1])
            if result is not None:
                return result
            if missing is not None:
                if seconds:
                    yield self._sleep(seconds * self.world.rng.uniform(0.8, 1.2))
                call.shares[missing] = share(step, missing)
                continue
            version = call.version
            yield self._until(lambda version=version: self.membership.version != version, 1.0)  # type: ignore[misc]

    def _take(self, flags: Mapping[str, Any]) -> None:
        self._flags = dict(flags)
        self.membership.is_leading = self._leads

    @property
    def _leads(self) -> bool:
        return bool(self._flags.get("leader") == list(self.membership.own))

    def _hand_over(self, flags: Mapping[str, Any]) -> Run:
        joining = [(number, incarnation) for number, incarnation in flags.get("grant", ())]
        if not joining or not self._leads:
            return
        yield self._until(lambda: all(map(self._exchange.generation, joining)), _SEND_SECONDS)
        commit = self.membership.commit
        position = {"step": self.at, "epoch": self.epoch, "start": self._is_start, "seq": list(commit.seq)}
        position |= {"flags": dict(flags), "granted": self.membership.granted}
        for nth in range(_PARTS):
            yield self._sleep(self.world.rng.uniform(0.0, 0.5))
            header = {"kind": handover.KIND, "nth": nth, "of": _PARTS, "position": position}
            for peer in joining:
                self._exchange.send(peer, header, memoryview(b""))
