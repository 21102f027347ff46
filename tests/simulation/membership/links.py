"""The registry, and the clients of the slices, over simulated connections."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.membership.clock import Lane, Process
from tests.simulation.membership.wires import End, connect, delay
from trainer.hosts.membership import Peer
from xpk_shared.links.connection import line
from xpk_shared.links.handshake import HANDSHAKE_SECONDS
from xpk_shared.links.hub import Hub
from xpk_shared.links.member import Member
from xpk_shared.slices.client import RegistryClient
from xpk_shared.slices.registry import BEATS, Registry

if TYPE_CHECKING:
    from tests.simulation.membership.world import World

_TURN_SECONDS, _RETRY_SECONDS = 0.1, 0.35


class _Link:
    """`xpk_shared.links.connection.Link` over a simulated connection."""

    def __init__(self, end: End) -> None:
        self.end, self.peer, self.has_left, self.max_bytes = end, -1, False, 0
        self.sock = self
        self.received_at, self.is_welcome = end.process.clock.now, False

    def getsockname(self) -> tuple[str]:
        """Return an address."""
        return ("registry",)

    def send(self, content: bytes) -> None:
        """Send lines."""
        self.end.send(content)

    beat = send

    def shut_down(self) -> None:
        """End the connection."""
        self.end.close()

    def read(self, content: bytes) -> list[dict[str, Any]]:
        """Return the messages in received lines."""
        self.received_at = self.end.process.clock.now
        return [json.loads(text) for text in content.splitlines()]


class _Gate:
    """A gate that admits all."""

    def admit(self, link: object, hello: object) -> bytes:
        """Return a welcome."""
        return line({"welcome": ""})


class _Hub(Hub):
    """The registry's end of the connections; one thread reads all of them."""

    def __init__(self, process: Process, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.process, self._reading, self._beating = process, Lane(process), Lane(process)
        self._woke = process.clock.now
        self._beating.put(BEATS.seconds, self._beat_once)

    def accept(self, dialed: End) -> None:
        """Let a slice connect."""
        link: Any = _Link(end := End(self.process, self._reading))
        connect(end, dialed)
        end.on_message, end.on_end = lambda content: self._read(link, content), lambda: self._disconnect(link)
        self._reading.put(delay(self.process.clock), lambda: link.send(line({"challenge": ""})))
        late = self.process.clock.now + HANDSHAKE_SECONDS
        self.process.clock.at(late, lambda: self._reading.put(0.0, lambda: end.close() if link.peer < 0 else None))

    def _read(self, link: Any, content: bytes) -> None:
        gate: Any = _Gate()
        if not all(self._handle(gate, link, message) for message in link.read(content)):
            link.end.close()

    def _beat_once(self) -> None:
        now = self.process.clock.now
        self._send_beats(now, now - self._woke - 2 * BEATS.seconds)
        self._woke = now
        self._beating.put(BEATS.seconds, self._beat_once)


class Supervisor(Registry):
    """The supervisor of slice 0 with the registry."""

    def __init__(self, world: World) -> None:
        self.world, self.process = world, Process(world.clock, "registry", 0)
        self.hub: _Hub
        sizes = world.num_slices, world.min_slices
        super().__init__("job", b"", *sizes, hub=self._open_hub, wall=lambda: world.clock.now)
        self._ticks, self._wakes, self._has_wake = Lane(self.process), Lane(self.process), False
        self._tick()

    @property
    def present(self) -> list[Peer]:
        """The slices that are present."""
        return [(number, entry.incarnation) for number, entry in self._roster._slices.items()]

    def _open_hub(self, *args: Any, **options: Any) -> Hub:
        self.hub = _Hub(self.process, *args, **options)
        return self.hub

    def _tick(self) -> None:
        self._turn(self.world.clock.now)
        self._ticks.put(_TURN_SECONDS, self._tick)

    def _change(self, change: Callable[[float], None]) -> None:
        super()._change(change)
        if not self._has_wake:
            self._has_wake = True
            self._wakes.put(delay(self.world.clock), self._turn_at_once)

    def _turn_at_once(self) -> None:
        self._has_wake = False
        self._turn(self.world.clock.now)


class _Member(Member):
    """A slice's end of a connection to the registry."""

    def __init__(self, process: Process, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._process, self._beating, self._woke = process, Lane(process), 0.0
        self._on_result: Callable[[bool], None] = lambda has_joined: None

    def dial(self, hub: _Hub, on_result: Callable[[bool], None]) -> None:
        """Connect to the registry; `on_result` is called with the result."""
        link: Any = _Link(end := End(self._process))
        self._on_result = on_result
        end.on_message, end.on_end = lambda content: self._shake(link, content), lambda: self._fail(link)
        hub.accept(end)
        clock = self._process.clock
        clock.at(clock.now + self._handshake_seconds, lambda: None if link.is_welcome else end.close())

    def _fail(self, link: Any) -> None:
        self.links.pop(0, None)
        self._on_result(False)

    def _shake(self, link: Any, content: bytes) -> None:
        first, *others = link.read(content)
        if "challenge" in first:
            self._greet(link, line({"hello": self.number}))
            return
        self.absent.clear()
        link.is_welcome = True
        link.end.on_message, link.end.on_end = lambda content: self._read(link, content), self._lose
        self._woke = self._process.clock.now
        self._beating.put(BEATS.seconds, self._beat_once)
        self._on_result(True)
        for message in others:
            self._handle(message)

    def _read(self, link: Any, content: bytes) -> None:
        for message in link.read(content):
            self._handle(message)

    def _lose(self) -> None:
        self.links.pop(0, None)
        if not self._is_closing:
            self._handlers.lost(0)

    def _beat_once(self) -> None:
        if not self._is_closing:
            now = self._process.clock.now
            self._send_beats(now, now - self._woke - 2 * BEATS.seconds)
            self._woke = now
            self._beating.put(BEATS.seconds, self._beat_once)


class Client(RegistryClient):
    """A slice's connection to the registry."""

    def __init__(self, process: Process, world: World, *args: Any, **options: Any) -> None:
        super().__init__(*args, member=functools.partial(_Member, process), **options)
        self._process, self._world, self._lane = process, world, Lane(process)
        self._joined: Member | None = None

    def connect(self, resolve: Callable[[], str], port: int) -> None:
        """Connect, and connect again after each loss."""
        self._lane.put(0.0, self._start)

    def hold(self, seconds: float) -> bool:
        """Let nothing arrive over the connection for a time; return whether there is one."""
        link: Any = self._member.links.get(0) if self._member else None
        for end in (link.end, link.end.other) if link and link.end.other else ():
            end.held_until = self._process.clock.now + seconds
        return link is not None

    def _start(self) -> None:
        member: Any = self._begin()
        self._dial(member)

    def _dial(self, member: _Member) -> None:
        registry = self._world.registry
        if not registry.process.is_alive:
            self._lane.put(_RETRY_SECONDS, lambda: self._dial(member))
            return
        member.dial(registry.hub, lambda has_joined: self._take_result(member, has_joined=has_joined))

    def _take_result(self, member: _Member, *, has_joined: bool) -> None:
        if has_joined:
            self._lane.put(delay(self._process.clock), lambda: self._join(member))
        else:
            self._lane.put(_RETRY_SECONDS, lambda: self._dial(member))

    def _join(self, member: _Member) -> None:
        self._enter(member)
        self._joined = member
        if self._is_lost.is_set():
            self._restart()

    def _record_loss(self, number: int) -> None:
        super()._record_loss(number)
        if self._is_lost.is_set() and self._joined:
            self._lane.put(delay(self._process.clock), self._restart)

    def _restart(self) -> None:
        if member := self._joined:
            self._joined = None
            self._leave_lost(member)
            self._start()
