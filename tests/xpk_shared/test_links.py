"""Links between hosts: authentication, losses, and messages for hosts that join late."""

from __future__ import annotations

import contextlib
import json
import queue
import resource
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.ports import free_port
from tests.waiting import until
from xpk_shared.links.connection import dial, line, listen
from xpk_shared.links.endpoint import Beats, Handlers
from xpk_shared.links.errors import PeerAbsent
from xpk_shared.links.handshake import Identity
from xpk_shared.links.hub import Hub
from xpk_shared.links.member import Member

SECONDS = 20.0
HERE = "127.0.0.1"
OURS = Identity(("a", "uid"), 0, b"s")

Heard = queue.Queue[tuple[Any, int]]


def handlers(received: Heard) -> Handlers:
    """Put received messages into a queue."""
    return Handlers(
        lambda number: received.put(("lost", number)),
        lambda what, number: received.put((what, number)),
        lambda message, number: None if "beat" in message else received.put((message, number)),
    )


def opened(hosts: int, **limits: Any) -> tuple[Hub, Heard, int]:
    """Return a listening hub, its received messages, and its port."""
    port = free_port()
    received: Heard = queue.Queue()
    hub = Hub(OURS, hosts, handlers(received), **limits)
    hub.open(HERE, port)
    return hub, received, port


def joined(number: int, port: int, *, beats: Beats | None = None) -> tuple[Member, Heard]:
    """Return a joined host and its received messages."""
    received: Heard = queue.Queue()
    member = Member(OURS, number, handlers(received), beats=beats)
    member.join(HERE, port, time.monotonic() + SECONDS)
    return member, received


def hears(received: Heard, *expected: tuple[Any, int]) -> None:
    """Wait for these messages, in this order."""
    assert [received.get(timeout=SECONDS) for _ in expected] == list(expected)


READY = {"ready": True}, 0


def test_a_late_host_receives_all_messages_in_order() -> None:
    hub, received, port = opened(5)
    first, _ = joined(1, port)
    for number in (4, 3):
        joined(number, port)[0].links[0].shut_down()
        hears(received, ("lost", number))
    first.broadcast("asked")
    hears(received, ("asked", 1))
    _, late = joined(2, port)
    hears(received, READY)
    hears(late, ("lost", 4), ("lost", 3), ("asked", 1), READY)
    hub.leave()
    _, later = joined(3, port)
    hears(later, ("lost", 4), ("lost", 3), ("asked", 1), READY)
    assert later.empty()


def test_many_messages_arrive_completely() -> None:
    hub, _, port = opened(3)
    news = [f"{n:x<1000}" for n in range(200)]
    for text in news:
        hub.broadcast(text)
    _, late = joined(1, port)
    hears(late, *((text, 0) for text in news))


def test_messages_sent_before_the_connection_arrive() -> None:
    port = free_port()
    others: list[Heard] = [queue.Queue(), queue.Queue()]
    hub, early = Hub(OURS, 3, handlers(others[0])), Member(OURS, 1, handlers(others[1]))
    early.broadcast("asked")
    early.leave()
    meeting = threading.Thread(target=early.join, args=(HERE, port))
    meeting.start()
    hub.open(HERE, port)
    meeting.join(SECONDS)
    early.links[0].shut_down()
    _, other = joined(2, port)
    hears(others[0], ("asked", 1), READY)
    hears(other, ("asked", 1), READY)
    assert others[0].empty() and other.empty(), "its end is not a failure"


def test_a_silent_host_is_lost() -> None:
    beats = Beats(seconds=0.1, silent_seconds=2.0)
    _, received, port = opened(3, beats=beats)
    lively, other = joined(1, port, beats=beats)
    joined(2, port)
    hears(received, READY, ("lost", 2))
    hears(other, READY, ("lost", 2))
    lively.broadcast("stop")
    hears(received, ("stop", 1))


def test_a_long_message_to_one_host_does_not_delay_heartbeats() -> None:
    beats = Beats(seconds=0.05)
    hub, received, port = opened(3, beats=beats)
    joined(1, port, beats=beats)
    other, _ = joined(2, port, beats=beats)
    with hub.links[1]._sending:  # like a host that reads slowly
        before = other.links[0].received_at
        until(lambda: other.links[0].received_at - before >= 0.5, seconds=SECONDS)
    hears(received, READY)
    assert received.empty()


STRANGE = [
    b'{"tell":"fatal","by":7}\n',
    b"1\n",
    b"null\n[]\n",
    b"[" * 100_000 + b"\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff\n",
    b'{"bye":0}\n{"report":[],"value":1}\n',
    b'{"hello":1,"attempt":0,"job":[]}\n{"tell":"fatal"}\n',
    b'{"hello":2,"attempt":1,"job":[]}\n',
    b'{"hello":[]}\n',
    b'{"hello":true,"attempt":0,"job":[]}\n',
    b'{"hello":99,"attempt":0,"job":[]}\n',
    b'{"hello":99,"nonce":"","proof":"\xc3\xa9"}\n',
    b'{"hello":2,"nonce":[],"proof":1}\n',
]


def test_an_unauthenticated_connection_changes_nothing() -> None:
    _, received, port = opened(3)
    one, others = joined(1, port)
    for said in STRANGE:
        with socket.create_connection((HERE, port)) as stranger:
            stranger.sendall(said)
    with socket.create_connection((HERE, port)) as stranger:
        stranger.settimeout(SECONDS)
        with pytest.raises(OSError):  # closed long before everything is sent
            for _ in range(1000):
                stranger.sendall(b"x" * 65536)
    joined(2, port)
    one.broadcast("stop")
    hears(received, READY, ("stop", 1))
    hears(others, READY)
    assert received.empty() and others.empty()


def test_a_host_with_invalid_messages_is_lost_and_the_hub_continues() -> None:
    _, received, port = opened(3)
    one, others = joined(1, port)
    joined(2, port)[0].send(b"1\n")
    hears(received, READY, ("lost", 2))
    hears(others, READY, ("lost", 2))
    one.broadcast("stop")
    hears(received, ("stop", 1))


def reply(stream: socket.socket, number: int, challenge: str = "") -> bytes:
    """Return the hello of a host with all information, for one connection or for another."""
    given = json.loads(stream.makefile("rb").readline())["challenge"]
    proof = OURS.proof("host", number, challenge or given, "n")
    return line({"hello": number, "nonce": "n", "proof": proof})


def test_a_proof_is_invalid_on_another_connection_and_when_reused() -> None:
    hub, received, port = opened(4)
    with contextlib.ExitStack() as callers:
        one, other, again, beyond, first = (callers.enter_context(dialled(port)) for _ in range(5))
        valid = reply(one, 1)
        for said, stream in ((valid, other), (reply(beyond, 4), beyond), (reply(first, 0), first)):
            stream.sendall(said)
            assert b"welcome" not in rest_of(stream)
        one.sendall(valid)
        assert b"welcome" in one.recv(1000)
        again.sendall(reply(again, 1))
        assert b"welcome" not in rest_of(again), "it has arrived already"
        assert list(hub.links) == [1] and received.empty()
        one.close()
        hears(received, ("lost", 1))


def rest_of(stream: socket.socket) -> bytes:
    """Return the data until the connection ends."""
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while data := stream.recv(1000):
            content += data
    return content


def dialled(port: int) -> socket.socket:
    """Return a connection to a hub."""
    sock = dial(HERE, port, time.monotonic() + SECONDS)
    sock.settimeout(SECONDS)
    return sock


def test_silent_connections_are_closed_and_do_not_block_hosts() -> None:
    hub, _, port = opened(2, handshake_seconds=0.5)
    with contextlib.ExitStack() as strangers:
        silent = [strangers.enter_context(dialled(port)) for _ in range(100)]
        joined(1, port)
        assert b"challenge" in rest_of(silent[0]), "and then the connection is closed"
        until(lambda: list(hub.links) == [1])


@pytest.mark.parametrize(
    ("attempt", "job", "secret"),
    [
        (1, ["a", "uid"], b"s"),
        (0, ["b", "uid"], b"s"),
        (0, ["a"], b"s"),
        (0, ["a", "uid"], b""),
        (0, ["a", "uid"], b"t"),
    ],
)
def test_a_host_of_another_job_or_attempt_or_with_another_secret_does_not_join(
    attempt: int, job: Sequence[str], secret: bytes
) -> None:
    hub, received, port = opened(2)
    other = Member(Identity(job, attempt, secret), 1, handlers(received))
    with pytest.raises(PeerAbsent, match=f"process 0 at 127.0.0.1:{port} belongs to another job or attempt"):
        other.join(HERE, port, time.monotonic() + 1.0)
    assert received.empty() and hub.absent == {1} and other.absent == {0}


@pytest.mark.parametrize(
    "said", [b'{"challenge":"aa"}\n', b'{"welcome":"00"}\n{"lost":0}\n', b'{"lost":0}\n', b"x" * (1 << 20)]
)
def test_a_hub_without_a_valid_proof_is_rejected(said: bytes) -> None:
    received: Heard = queue.Queue()
    with socket.create_server((HERE, 0)) as impostor:
        member = Member(OURS, 1, handlers(received))
        deadline = time.monotonic() + 2.0
        joining = threading.Thread(target=absent, args=(member, impostor.getsockname()[1], deadline))
        joining.start()
        impostor.settimeout(SECONDS)
        link, _ = impostor.accept()
        with link, contextlib.suppress(ConnectionError):
            link.sendall(said)
            link.recv(1024)
            link.sendall(b'{"welcome":"%s"}\n{"lost":0}\n' % (b"0" * 64))
            while link.recv(1024):
                pass
    joining.join(SECONDS)
    assert not joining.is_alive() and received.empty() and not member.links


def absent(member: Member, port: int, deadline: float) -> None:
    """Let a host join without a hub of its own."""
    with pytest.raises(PeerAbsent):
        member.join(HERE, port, deadline)


@contextlib.contextmanager
def silent(address: str, port: int = 0) -> Iterator[int]:
    """Yield a port of an address that does not respond, like a lost host: its queue is full."""
    with socket.socket() as server, contextlib.ExitStack() as queue:
        server.bind((address, port))
        server.listen(0)
        for _ in range(4):
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


def test_a_stale_name_is_resolved_again() -> None:
    with socket.create_server((HERE, 0)) as server, silent("127.0.0.3", server.getsockname()[1]) as port:
        began = time.monotonic()
        result = dial("127.0.0.3", port, began + SECONDS, lambda: HERE)
        assert result.getpeername()[0] == HERE and time.monotonic() - began < 5
        result.close()


def test_a_name_that_stays_stale_for_some_seconds_delays_a_connection_only_for_one_attempt() -> None:
    with socket.create_server((HERE, 0)) as server, silent("127.0.0.3", server.getsockname()[1]) as port:
        began, addresses = time.monotonic(), iter(["127.0.0.3"] * 5 + [HERE])
        dial("127.0.0.3", port, began + SECONDS, lambda: next(addresses), max_timeout=0.5).close()
        assert time.monotonic() - began < 10, "timeouts that grow would take 33 s"


def test_each_failed_attempt_is_reported() -> None:
    errors: list[OSError] = []
    with pytest.raises(PeerAbsent, match="cannot connect to process 0 at no name:1"):
        dial("no name", 1, time.monotonic() + 0.2, report=errors.append)
    assert errors and all(isinstance(error, socket.gaierror) for error in errors)


def test_the_hub_accepts_connections_of_many_hosts() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
    try:
        listen(HERE, 0).close()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_hub_at_all_addresses_accepts_ipv4_and_ipv6(address: str) -> None:
    with listen("", 0) as server:
        dial(address, server.getsockname()[1], time.monotonic() + SECONDS).close()
