"""Connections between hosts that carry anything, before and after the handshake: hosts neither crash nor hang."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.counts import inputs
from tests.fuzz.mutations import DEEP, as_json, changed, damaged, mutants
from tests.ports import free_port
from tests.waiting import until
from trainer.elastic.connections import Connections
from trainer.hosts.peers import Peers
from xpk_shared.links.connection import dial
from xpk_shared.links.errors import PeerAbsent
from xpk_shared.links.handshake import PROTOCOL_ERRORS, Identity
from xpk_shared.links.member import Member
from xpk_shared.slices.registry import Registry, identity
from xpk_shared.slices.roster import RosterLimits, read_view
from xpk_shared.supervisor import peers as supervisor
from xpk_shared.supervisor.host import Host

HERE, SECONDS, SECRET = "127.0.0.1", 20.0, b"secret"
ENTRY: Any = {"incarnation": "i", "phase": "waiting", "hosts": [["127.0.0.1", 9]]}
VIEW: Any = {"view": 1, "slices": {"0": ENTRY, "1": {**ENTRY, "phase": "active"}}, "founder": "i", "done": False}
# Messages of all users of links, to the first host and from it.
TO_HUB: list[Any] = [
    {"report": "written/1", "value": ""}, {"answer": "hung x"}, {"tell": "stop", "by": 2}, {"bye": 2}, {"beat": 2},
    {"end": 1, "told": False, "lost": None, "restarts": 0}, {"ask": 2}, {"slice": ENTRY}, {"leave": True},
    {"slice": {**ENTRY, "phase": "active"}, "continued": ["i"]}, {"done": True},
]  # fmt: skip
FROM_HUB: list[Any] = [
    {"announce": "saved/1", "value": ""}, {"ready": True}, {"lost": 2}, {"tell": "stop", "by": 2}, {"bye": 0},
    {"stop": 0, "number": 2, "code": 1}, {"pause": 1.0, "short_attempts": 2}, {"start": 1, "record": {"time": 1}},
    {"final": 2, "silent": True}, {"done": True}, {"alive": True}, VIEW, {"evicted": "i"},
]  # fmt: skip
HELLO = {"hello": 2, "nonce": "n", "proof": "0" * 64}
DEEPEST = b"[" * 900 + b"]" * 900
NOISE = st.binary(max_size=40) | st.sampled_from(
    [b"[" * 900 + b"\n", b"x" * 70_000, b"GET / HTTP/1.1\r\n\r\n", b"\n\n", b"\0"]
)


def lines(messages: list[Any]) -> st.SearchStrategy[bytes]:
    """Return a strategy of lines like these messages, and of other bytes."""
    valid = st.sampled_from(messages)
    like = st.one_of(*(mutants(message) for message in messages)).map(as_json)
    return st.lists(damaged(valid.map(as_json)) | like | NOISE, min_size=1, max_size=4).map(
        lambda parts: b"\n".join(parts) + b"\n"
    )


@dataclass
class Server:
    """A first host, and the identity of its job."""

    port: int
    identity: Identity

    def dial(self, number: int | None) -> socket.socket:
        """Connect as a host that knows the secret, or as a stranger."""
        sock = socket.create_connection((HERE, self.port), timeout=SECONDS)
        if number is not None:
            challenge = json.loads(sock.makefile("rb").readline())["challenge"]
            proof = self.identity.proof("host", number, challenge, "n")
            sock.sendall(as_json({"hello": number, "nonce": "n", "proof": proof}) + b"\n")
            assert b"welcome" in sock.recv(1 << 16)
        return sock

    def attack(self, content: bytes, number: int | None) -> None:
        """Send anything; then a new host must be able to join."""
        with self.dial(number) as sock, suppress(OSError):
            sock.sendall(content)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):  # until the first host has read everything
                pass
        with self.dial(1):
            pass


def supervisor_host(number: int, port: int) -> Host:
    return Host(number, 3, 1, HERE, port, "j", 0, "")


def receive(text: str, number: int) -> None:
    """Use a text as the trainer does."""
    text.startswith("hung ")


IDENTITIES = [Identity(("j",), 0, SECRET), Identity(("command", "j"), 0, SECRET), identity("j", SECRET)]


@pytest.fixture(scope="module")
def servers() -> list[Server]:
    """Return all kinds of first hosts: the trainer's, the supervisor's and the registry."""
    ports = [free_port() for _ in range(3)]
    trainer = Peers(0, 3, 0, ("j",), secret=SECRET, on_lost=lambda peer: None, on_message=receive)
    threading.Thread(target=connect, args=(trainer, ports[0]), daemon=True).start()
    supervisor.Peers(supervisor_host(0, ports[1]), SECRET, lambda: None).connect()
    Registry("j", SECRET, 2, 1, limits=RosterLimits(form_seconds=0.0)).open(HERE, ports[2])
    made = [Server(port, known) for port, known in zip(ports, IDENTITIES, strict=True)]
    for server in made:
        dial(HERE, server.port, time.monotonic() + SECONDS).close()
    return made


def connect(peers: Peers, port: int) -> None:
    with suppress(PeerAbsent):  # not all hosts come
        peers.connect(HERE, port, SECONDS)


@pytest.fixture
def crashes() -> Iterator[list[BaseException | None]]:
    """Yield the errors of threads; there must be none."""
    errors: list[BaseException | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda arguments: errors.append(arguments.exc_value))
        yield errors
    assert not errors


def of(message: Any, *path_and_value: Any) -> bytes:
    return as_json(changed(message, [(path_and_value[:-1], path_and_value[-1])])) + b"\n"


INFINITE = float("inf")


@inputs(0.06)
@given(kind=st.sampled_from([0, 1, 2]), content=lines([HELLO, *TO_HUB]))
@example(kind=0, content=b'{"hello":1e999,"nonce":"n","proof":""}\n')
@example(kind=2, content=b'{"hello":2,"nonce":' + b"[" * 450 + b"]" * 450 + b',"proof":""}\n')
def test_a_stranger_at_the_first_host(
    servers: list[Server], crashes: list[BaseException | None], kind: int, content: bytes
) -> None:
    servers[kind].attack(content, None)
    assert not crashes


@inputs(0.06)
@given(kind=st.sampled_from([0, 1, 2]), content=lines(TO_HUB))
@example(kind=2, content=of({"slice": ENTRY}, "slice", "hosts", 0, 1, INFINITE))
@example(kind=1, content=of(TO_HUB[5], "end", INFINITE))
@example(kind=0, content=b'{"tell":' + DEEPEST + b"}\n")
@example(kind=0, content=of({"tell": "stop"}, "tell", DEEP))
@example(kind=0, content=of({"report": "x", "value": 1}, "report", []))
def test_a_host_that_knows_the_secret_at_the_first_host(
    servers: list[Server], crashes: list[BaseException | None], kind: int, content: bytes
) -> None:
    servers[kind].attack(content, 2)
    assert not crashes


def trainer_peers() -> Peers:
    return Peers(1, 3, 0, ("j",), secret=SECRET, on_lost=lambda peer: None, on_message=receive)


def supervisor_peers() -> supervisor.Peers:
    return supervisor.Peers(supervisor_host(1, 0), SECRET, lambda: None)


@inputs(0.04)
@given(kind=st.sampled_from([0, 1]), content=lines(FROM_HUB), is_genuine=st.booleans())
@example(kind=1, content=of({"pause": 1.0, "short_attempts": 2}, "pause", "x"), is_genuine=True)
@example(kind=1, content=b'{"stop":0}\n', is_genuine=True)
@example(kind=0, content=b'{"challenge":' + DEEPEST + b"}\n", is_genuine=False)
def test_a_first_host_that_sends_anything(
    crashes: list[BaseException | None], kind: int, content: bytes, is_genuine: bool
) -> None:
    peers, known = [(trainer_peers, IDENTITIES[0]), (supervisor_peers, IDENTITIES[1])][kind]
    member = peers()
    others = threads()
    with socket.create_server((HERE, 0)) as server:
        deadline = time.monotonic() + (SECONDS if is_genuine else 0.0)
        joining = threading.Thread(target=join, args=(member, server.getsockname()[1], deadline), daemon=True)
        joining.start()
        server.settimeout(SECONDS)
        with server.accept()[0] as link, suppress(ConnectionError):
            link.settimeout(SECONDS)
            if is_genuine:
                welcome(link, known)
                joining.join(SECONDS)
            link.sendall(content)
            with suppress(OSError):  # "not connected": the host has closed it first
                link.shutdown(socket.SHUT_WR)
            while link.recv(1 << 16):
                pass
    joining.join(SECONDS)
    assert not joining.is_alive()
    until(lambda: threads() <= others, seconds=SECONDS, every=0.002)
    if isinstance(member, supervisor.Peers):
        for order in member.orders:
            assert all(isinstance(order.get(key, 0), int | float) for key in ("stop", "pause", "start", "final"))
    assert not crashes


def threads() -> set[threading.Thread]:
    """Return the threads that read from links."""
    return {thread for thread in threading.enumerate() if thread.name == "links"}


def join(peers: Peers | supervisor.Peers, port: int, deadline: float) -> None:
    """Connect without waiting for the other hosts."""
    assert isinstance(peers._link, Member)
    with suppress(PeerAbsent):
        peers._link.join(HERE, port, deadline)


def welcome(link: socket.socket, known: Identity) -> None:
    """Prove to a host that this is its first host."""
    link.sendall(b'{"challenge":"c"}\n')
    hello = json.loads(link.makefile("rb").readline())
    link.sendall(as_json({"welcome": known.proof("hub", 1, "c", hello["nonce"])}) + b"\n")


@inputs(0.04)
@given(message=mutants(VIEW))
@example(message={**VIEW, "view": INFINITE})
def test_any_view_of_the_slices(message: Any) -> None:
    with suppress(*PROTOCOL_ERRORS):
        view = read_view(message)
        assert read_view(json.loads(as_json(view.as_json()))) == view


def frame(header: bytes, payload: bytes = b"", claimed: int | None = None) -> bytes:
    return struct.pack(">IQ", len(header), len(payload) if claimed is None else claimed) + header + payload


FRAMES = st.lists(
    damaged(
        st.builds(frame, st.sampled_from([as_json(HELLO), b"{}", b"[]", b"[" * 1000]) | NOISE, st.binary(max_size=9))
    )
    | st.builds(lambda size: frame(b"{}", b"", size), st.sampled_from([1, 1 << 20, 1 << 40, 1 << 62, (1 << 64) - 1])),
    min_size=1,
    max_size=3,
).map(b"".join)


@pytest.fixture(scope="module")
def exchange() -> int:
    """Return the port of a host that exchanges gradients."""

    def take(peer: Any, header: dict[str, Any], payload: memoryview) -> None:
        header["kind"] + "x"

    slices: Any = SimpleNamespace(notify=lambda: None, dropped=[], hear=lambda peer, dropped: frozenset(dropped))
    return Connections(Identity(("j",), 0, SECRET), (0, "a"), take, slices).listen(HERE, beats=True)


def met(port: int) -> socket.socket:
    """Connect to it as slice 1."""
    sock = socket.create_connection((HERE, port), timeout=SECONDS)
    challenge = read_frame(sock)["challenge"]
    proof = Identity(("j",), 0, SECRET).proof("host", 1, challenge, "b n")
    sock.sendall(frame(as_json({"hello": 1, "nonce": "b n", "proof": proof})))
    assert "welcome" in read_frame(sock)
    return sock


def read_frame(sock: socket.socket) -> Any:
    with sock.makefile("rb") as content:
        length, _ = struct.unpack(">IQ", content.read(12))
        return json.loads(content.read(length))


@inputs(0.04)
@given(content=FRAMES, is_genuine=st.booleans())
@example(content=frame(b"[" * 1000), is_genuine=False)
@example(content=frame(as_json({"hello": INFINITE, "nonce": "n", "proof": ""})), is_genuine=False)
@example(content=frame(b"{}", b"", (1 << 64) - 1), is_genuine=True)
@example(content=frame(b"{}", b"", 1 << 40), is_genuine=True)
@example(content=frame(b"[" * 100_000), is_genuine=True)
@example(content=frame(b'{"beat": [["a"]]}'), is_genuine=True)
def test_a_slice_that_sends_anything(
    exchange: int, crashes: list[BaseException | None], content: bytes, is_genuine: bool
) -> None:
    sock = met(exchange) if is_genuine else socket.create_connection((HERE, exchange), timeout=SECONDS)
    with sock, suppress(OSError):
        sock.sendall(content)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    met(exchange).close()
    assert not crashes


def test_a_slow_stranger_is_closed_in_time(exchange: int) -> None:
    """A byte now and then must not prolong the handshake, or a few strangers would keep slices from connecting."""
    began = time.monotonic()
    with socket.create_connection((HERE, exchange)) as sock, suppress(OSError):
        sock.settimeout(0.2)
        sock.sendall(struct.pack(">IQ", 1000, 0))
        while time.monotonic() - began < SECONDS:
            sock.sendall(b" ")
            with suppress(TimeoutError):
                if not sock.recv(1000):
                    break
    assert time.monotonic() - began < SECONDS
