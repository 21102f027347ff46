"""The registry of elastic slices and its clients, over sockets, with slices that die or freeze."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xpk_shared
from tests.ports import free_port
from tests.waiting import until
from xpk_shared.links.connection import line
from xpk_shared.links.endpoint import Beats
from xpk_shared.slices.registry import Registry, silence_limit
from xpk_shared.slices.roster import ACTIVE, READY, WAITING, Entry, RosterLimits, View

PATH = f"import sys; sys.path.insert(0, {str(Path(xpk_shared.__file__).parents[1])!r})\n"
# Arguments of both: the port, the secret, and the number of slices or the slice, its incarnation and its phase.
REGISTRY = f"""{PATH}
import time
from xpk_shared.links.endpoint import Beats
from xpk_shared.slices.registry import Registry
from xpk_shared.slices.roster import RosterLimits
beats, limits = Beats(seconds=0.1, silent_seconds=1.5), RosterLimits(form_seconds=60.0, settle_seconds=1.0)
port, secret, slices = sys.argv[1:]
Registry("job", secret.encode(), int(slices), 1, limits=limits, beats=beats).open("127.0.0.1", int(port))
print('"listening"', flush=True)
time.sleep(1000)
"""
SLICE = f"""{PATH}
import json
from xpk_shared.links.endpoint import Beats
from xpk_shared.slices.client import RegistryClient
from xpk_shared.slices.registry import identity
from xpk_shared.slices.roster import Entry
port, secret, number, incarnation, phase = sys.argv[1:]
say = lambda what: print(json.dumps(what), flush=True)
client = RegistryClient(
    identity("job", secret.encode()),
    int(number),
    Entry(incarnation, phase, (("127.0.0.1", 1),)),
    on_view=lambda view: say(view.as_json()),
    on_evicted=lambda: say("evicted"),
    beats=Beats(seconds=0.1, silent_seconds=1.5),
)
client.connect(lambda: "127.0.0.1", int(port))
for order in sys.stdin:
    if order.strip() in ("waiting", "ready", "active"):
        client.update(Entry(incarnation, order.strip(), (("127.0.0.1", 1),)))
    elif order.startswith("continue with "):
        client.continue_with(order.removeprefix("continue with ").strip().split(", "))
    else:
        client.leave(is_done=order.strip() == "done")
        sys.exit()
"""
SECRET = "s" * 64
BEATS = Beats(seconds=0.1, silent_seconds=1.5)
PATIENT = Beats(seconds=0.1, silent_seconds=60.0)


class Program:
    """A process that prints a line of JSON for each event."""

    def __init__(self, program: str, file: Path, *arguments: object) -> None:
        argv = [sys.executable, "-I", "-c", program, *map(str, arguments)]
        self._file = file
        with file.open("wb") as out:
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=out)

    @property
    def events(self) -> list[Any]:
        """The events so far."""
        return [json.loads(text) for text in self._file.read_text().splitlines(keepends=True) if text.endswith("\n")]

    @property
    def view(self) -> dict[str, Any]:
        """The newest view that a slice has received, empty before the first one."""
        views: list[dict[str, Any]] = [event for event in self.events if "view" in event]
        return views[-1] if views else {}

    def sees(self, **phases: str) -> None:
        """Wait for a view of these slices, with the names s0, s1 and so on, and their phases."""
        until(
            lambda: {f"s{number}": each["phase"] for number, each in self.view.get("slices", {}).items()} == phases,
            report=lambda: self.events,
        )

    def waits(self) -> int:
        """Return how often its threads have begun to wait."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/status")
        lines = [line for task in tasks for line in task.read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))

    def order(self, text: str) -> None:
        """Send a line to the process."""
        assert self.process.stdin
        self.process.stdin.write(f"{text}\n".encode())
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()


@pytest.fixture
def port() -> int:
    """Return a free port."""
    return free_port()


@pytest.fixture
def start(tmp_path: Path, port: int) -> Iterator[Callable[..., Program]]:
    """Yield a function that starts a slice; all are killed afterwards."""
    programs: list[Program] = []

    def started(number: int, incarnation: str = "first", phase: str = "waiting", secret: str = SECRET) -> Program:
        file = tmp_path / f"{len(programs)}.json"
        programs.append(Program(SLICE, file, port, secret, number, f"{incarnation} {number}", phase))
        return programs[-1]

    yield started
    for program in programs:
        program.kill()


@pytest.fixture
def registry(port: int) -> Registry:
    """Return a registry of three slices in this process."""
    limits = RosterLimits(form_seconds=60.0, settle_seconds=1.0)
    registry = Registry("job", SECRET.encode(), 3, 1, limits=limits, beats=BEATS)
    registry.open("127.0.0.1", port)
    return registry


def three(start: Callable[..., Program]) -> list[Program]:
    """Start three slices and wait until they see each other."""
    slices = [start(number) for number in range(3)]
    for each in slices:
        each.sees(s0="waiting", s1="waiting", s2="waiting")
    return slices


@pytest.mark.usefixtures("registry")
def test_a_lost_slice_leaves_the_view_and_its_next_start_joins(start: Callable[..., Program]) -> None:
    first, other, victim = three(start)
    assert first.view["founder"] == "first 0"
    first.order("active")
    other.sees(s0="active", s1="waiting", s2="waiting")
    assert other.view["founder"] == ""
    victim.kill()
    for each in (first, other):
        each.sees(s0="active", s1="waiting")
    again = start(2, "second")
    again.sees(s0="active", s1="waiting", s2="waiting")
    assert again.view["slices"]["2"]["incarnation"] == "second 2"


@pytest.mark.usefixtures("registry")
def test_a_silent_slice_is_dropped_and_evicted_when_it_returns(start: Callable[..., Program]) -> None:
    first, other, frozen = three(start)
    frozen.process.send_signal(signal.SIGSTOP)
    for each in (first, other):
        each.sees(s0="waiting", s1="waiting")
    frozen.process.send_signal(signal.SIGCONT)
    until(lambda: "evicted" in frozen.events)
    assert {*first.view["slices"]} == {"0", "1"}


def two_active(start: Callable[..., Program]) -> list[Program]:
    """Return two slices that are active."""
    slices = [start(number) for number in range(2)]
    for each in slices:
        each.sees(s0="waiting", s1="waiting")
    for each in slices:
        each.order("active")
    slices[0].sees(s0="active", s1="active")
    return slices


def test_the_only_active_slice_may_be_silent_for_longer(start: Callable[..., Program], port: int) -> None:
    """A busy machine must not undo the steps that it has trained while the other one starts."""
    Registry("job", SECRET.encode(), 2, 1, beats=PATIENT).open("127.0.0.1", port)
    slices = two_active(start)
    slices[1].process.send_signal(signal.SIGSTOP)
    slices[0].sees(s0="active")
    again = start(1, "second")
    again.sees(s0="active", s1="waiting")
    slices[0].process.send_signal(signal.SIGSTOP)
    time.sleep(silence_limit(slices_of(ACTIVE, ACTIVE), 0) + 1.0)
    assert {*again.view["slices"]} == {"0", "1"}


def test_an_active_slice_that_others_wait_for_is_dropped_by_the_short_limit_of_silence(
    start: Callable[..., Program], port: int
) -> None:
    Registry("job", SECRET.encode(), 2, 1, beats=PATIENT).open("127.0.0.1", port)
    slices = two_active(start)
    slices[1].process.send_signal(signal.SIGSTOP)
    slices[0].sees(s0="active")


def test_a_registry_that_is_often_suspended_still_drops_a_silent_slice(
    start: Callable[..., Program], tmp_path: Path, port: int
) -> None:
    """A busy machine runs its threads late again and again."""
    server = Program(REGISTRY, tmp_path / "registry.json", port, SECRET, 3)
    try:
        first, _, frozen = three(start)
        frozen.process.send_signal(signal.SIGSTOP)
        for _ in range(33):
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(0.4)
            waits = server.waits()
            server.process.send_signal(signal.SIGCONT)
            until(lambda waits=waits: server.waits() >= waits + 2)  # type: ignore[misc]  # its threads have had a turn
            time.sleep(0.05)
            if "2" not in first.view["slices"]:
                break
        assert {*first.view["slices"]} == {"0", "1"}
    finally:
        server.kill()


def slices_of(*phases: str) -> View:
    """Return a view of slices in these phases."""
    return View(1, {number: Entry(f"a{number}", phase, ()) for number, phase in enumerate(phases)})


def test_the_limit_of_silence_is_short_only_for_slices_that_others_wait_for() -> None:
    short, long = silence_limit(slices_of(ACTIVE, ACTIVE, WAITING), 0), silence_limit(View(), 0)
    assert short < 2.0 < long
    assert silence_limit(slices_of(ACTIVE, READY), 1) == short, "it may be receiving the state"
    assert silence_limit(slices_of(READY, READY), 1) == long
    assert silence_limit(slices_of(ACTIVE, ACTIVE, WAITING), 2) == silence_limit(slices_of(ACTIVE, READY), 0) == long


def test_a_slice_leaves_on_request_and_the_end_of_the_run_is_announced(
    registry: Registry, start: Callable[..., Program]
) -> None:
    first, other, third = three(start)
    other.order("leave")
    first.sees(s0="waiting", s2="waiting")
    first.order("done")
    until(lambda: third.view["done"])
    late = start(1, "second")
    until(lambda: late.view.get("done"))
    third.order("done")
    time.sleep(0.3)
    assert not registry.has_finished
    late.order("done")
    until(lambda: registry.has_finished)


def test_active_slices_stay_with_a_new_registry(start: Callable[..., Program], tmp_path: Path, port: int) -> None:
    server = Program(REGISTRY, tmp_path / "first.json", port, SECRET, 3)
    try:
        slices = three(start)
        for each in slices[:2]:
            each.order("active")
        slices[2].sees(s0="active", s1="active", s2="waiting")
        server.kill()
        slices[2].kill()
        seen = [len(each.events) for each in slices]
        server = Program(REGISTRY, tmp_path / "second.json", port, SECRET, 3)
        for each in slices[:2]:
            each.sees(s0="active", s1="active")
        joined = start(2, "second")
        joined.sees(s0="active", s1="active", s2="waiting")
        for each, count in zip(slices[:2], seen[:2], strict=True):
            each.sees(s0="active", s1="active", s2="waiting")
            views = each.events[count:]
            assert all({"0", "1"} <= {*view["slices"]} for view in views), "neither was ever absent"
    finally:
        server.kill()


class _Hub:
    """The registry's end of connections that a test makes."""

    def __init__(self) -> None:
        self.silence_limits: dict[int, float] = {}
        self.views: list[dict[str, Any]] = []
        self.replies: list[tuple[int, dict[str, Any]]] = []
        self.has_shut_down = False

    def send(self, content: bytes) -> None:
        """Keep a view."""
        self.views.append(json.loads(content))

    def reply(self, number: int, message: dict[str, Any]) -> None:
        """Keep an answer."""
        self.replies.append((number, message))

    def shut_down(self, excluded: int) -> None:
        """End all connections."""
        self.has_shut_down = True


def test_what_slices_say_on_connections_that_a_thawed_registry_ends_does_not_count() -> None:
    """They connect again while it is frozen; it ends these connections as well when it finds that others are lost."""
    hub: Any = _Hub()
    registry = Registry("job", b"", 2, 1, hub=lambda *arguments, **options: hub)

    def say(number: int) -> None:
        registry._receive({"slice": Entry(f"a{number}", ACTIVE, ()).as_json()}, number + 1)

    for number in range(2):
        say(number)
    registry._turn(0.0)
    for number in range(2):
        registry._record_loss(number + 1)
    for number in range(2):
        say(number)
    registry._turn(5.0)
    assert hub.has_shut_down
    for number in range(2):
        registry._record_loss(number + 1)
    registry._turn(5.1)
    for number in range(2):
        say(number)
    views = len(hub.views)
    registry._turn(5.2)
    assert len(hub.views) == views, "more of what was sent meanwhile may follow"
    for tenths in range(53, 65):
        registry._turn(tenths / 10)
    assert hub.replies == [] and {*hub.views[-1]["slices"]} == {"0", "1"}


def in_memory(num_slices: int) -> tuple[Registry, Any, Callable[..., None]]:
    """Return a registry, its hub, and a function that lets slices say their phases."""
    hub: Any = _Hub()
    registry = Registry("job", b"", num_slices, num_slices - 1, hub=lambda *arguments, **options: hub)

    def say(*numbers: int, phase: str = ACTIVE) -> None:
        for number in numbers:
            registry._receive({"slice": Entry(f"a{number}", phase, ()).as_json()}, number + 1)

    return registry, hub, say


def test_no_list_is_formed_of_what_slices_said_on_ended_connections() -> None:
    """The loss of these connections comes when the list would be formed: the slices would count as dropped."""
    registry, hub, say = in_memory(2)
    say(0, 1)
    registry._turn(0.0)
    registry._record_loss(1)
    say(0, 1)
    for tenths in range(50, 65):
        registry._turn(tenths / 10)
    for number in range(2):
        registry._record_loss(number + 1)
    registry._turn(6.5)
    say(0, 1)
    registry._turn(6.6)
    assert hub.replies == [] and {*hub.views[-1]["slices"]} == {"0", "1"}


def test_a_registry_that_was_frozen_while_it_waited_for_slices_still_waits() -> None:
    registry, hub, say = in_memory(3)
    say(1)
    say(0, phase=WAITING)
    registry._turn(0.0)
    for tenths in range(130, 150):
        registry._turn(tenths / 10)
    assert hub.views == []
    say(2)
    registry._turn(15.0)
    assert {*hub.views[0]["slices"]} == {"0", "1", "2"}


def test_the_only_active_slice_is_taken_back_after_it_was_silent(
    start: Callable[..., Program], registry: Registry
) -> None:
    slices = three(start)
    slices[0].order("active")
    slices[0].sees(s0="active", s1="waiting", s2="waiting")
    slices[0].process.send_signal(signal.SIGSTOP)
    slices[1].sees(s1="waiting", s2="waiting")
    slices[0].process.send_signal(signal.SIGCONT)
    for each in slices:
        each.sees(s0="active", s1="waiting", s2="waiting")
    assert "evicted" not in slices[0].events


def test_a_slice_that_was_dropped_is_refused_by_a_new_registry_too(
    start: Callable[..., Program], tmp_path: Path, port: int
) -> None:
    server = Program(REGISTRY, tmp_path / "first.json", port, SECRET, 3)
    try:
        slices = three_active(start)
        slices[1].process.send_signal(signal.SIGSTOP)
        for each in (slices[0], slices[2]):
            each.sees(s0="active", s2="active")
        server.kill()
        slices[0].kill()
        slices[1].process.send_signal(signal.SIGCONT)
        server = Program(REGISTRY, tmp_path / "second.json", port, SECRET, 3)
        until(lambda: "evicted" in slices[1].events, report=lambda: slices[1].events)
        assert "evicted" not in slices[2].events
    finally:
        server.kill()


@pytest.fixture
def server(tmp_path: Path, port: int) -> Iterator[Program]:
    """Yield a registry of three slices in a process of its own."""
    program = Program(REGISTRY, tmp_path / "server.json", port, SECRET, 3)
    yield program
    program.process.send_signal(signal.SIGCONT)
    program.kill()


def three_active(start: Callable[..., Program]) -> list[Program]:
    """Start three slices that are active."""
    slices = three(start)
    for each in slices:
        each.order("active")
    for each in slices:
        each.sees(s0="active", s1="active", s2="active")
    return slices


def test_active_slices_stay_with_a_registry_that_was_frozen(server: Program, start: Callable[..., Program]) -> None:
    slices = three_active(start)
    views = [each.view["view"] for each in slices]
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(3.0)  # all slices have left it
    server.process.send_signal(signal.SIGCONT)
    for each, view in zip(slices, views, strict=True):
        until(lambda each=each, view=view: each.view["view"] > view, report=lambda each=each: each.events)  # type: ignore[misc]
        each.sees(s0="active", s1="active", s2="active")
        assert "evicted" not in each.events
        assert all({*view["slices"]} == {"0", "1", "2"} for view in each.events), "no slice was ever absent"


def test_a_slice_that_was_frozen_with_the_registry_is_refused_if_the_others_have_continued(
    server: Program, start: Callable[..., Program]
) -> None:
    slices = three_active(start)
    for frozen in (server, slices[0]):
        frozen.process.send_signal(signal.SIGSTOP)
    time.sleep(3.0)
    for each in slices[1:]:
        each.order("continue with first 1, first 2")
    for frozen in (server, slices[0]):
        frozen.process.send_signal(signal.SIGCONT)
    until(lambda: "evicted" in slices[0].events, report=lambda: slices[0].events)
    for each in slices[1:]:
        each.sees(s1="active", s2="active")
        assert "evicted" not in each.events


@pytest.mark.usefixtures("registry")
def test_connections_without_the_secret_change_nothing(start: Callable[..., Program], port: int) -> None:
    first, other, _ = three(start)
    count = len(first.events)
    stranger = start(2, "second", secret="another secret")
    for message in (
        {"slice": {"incarnation": "x", "phase": "active", "hosts": []}},
        {"done": True},
        {"leave": True},
        {"hello": 1, "nonce": "n", "proof": "p"},
        {"bye": 1},
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            assert sock.recv(1000).startswith(b'{"challenge"')
            sock.sendall(line(message))
            assert sock.recv(1000) == b"", "the connection is closed"
    time.sleep(0.5)
    assert len(first.events) == count and stranger.events == []
    first.order("ready")
    other.sees(s0="ready", s1="waiting", s2="waiting")


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("phase", ["asleep", ""])
def test_an_invalid_entry_ends_the_connection_of_its_slice(start: Callable[..., Program], phase: str) -> None:
    slices = three(start)
    wrong = start(2, "second", phase)  # waits until number 2 is free
    slices[2].kill()
    slices[0].sees(s0="waiting", s1="waiting")
    time.sleep(0.5)
    assert wrong.events == [] or {*wrong.view["slices"]} == {"0", "1"}
    assert {*slices[0].view["slices"]} == {"0", "1"}
