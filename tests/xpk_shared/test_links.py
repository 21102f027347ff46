"""Links between hosts: who may join, who is lost, and what those hear who join late."""

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


def handlers(heard: Heard) -> Handlers:
    """Put what a host hears into a queue."""
    return Handlers(
        lambda number: heard.put(("lost", number)),
        lambda what, number: heard.put((what, number)),
        lambda message, number: None if "beat" in message else heard.put((message, number)),
    )


def opened(hosts: int, **limits: Any) -> tuple[Hub, Heard, int]:
    """Return a hub that listens, what it hears, and its port."""
    with listen(HERE, 0) as taken:
        port = taken.getsockname()[1]
    heard: Heard = queue.Queue()
    hub = Hub(OURS, hosts, handlers(heard), **limits)
    hub.open(HERE, port)
    return hub, heard, port


def joined(number: int, port: int, *, beats: Beats | None = None) -> tuple[Member, Heard]:
    """Return a host that has joined, and what it hears."""
    heard: Heard = queue.Queue()
    member = Member(OURS, number, handlers(heard), beats=beats)
    member.join(HERE, port, time.monotonic() + SECONDS)
    return member, heard


def hears(heard: Heard, *expected: tuple[Any, int]) -> None:
    """Wait for these, in this order."""
    assert [heard.get(timeout=SECONDS) for _ in expected] == list(expected)


READY = {"ready": True}, 0


def test_a_host_that_joins_late_hears_all_that_the_others_have_heard_in_order() -> None:
    hub, heard, port = opened(5)
    first, _ = joined(1, port)
    for number in (4, 3):
        joined(number, port)[0].links[0].cut()
        hears(heard, ("lost", number))
    first.tell("asked")
    hears(heard, ("asked", 1))
    _, late = joined(2, port)
    hears(heard, READY)
    hears(late, ("lost", 4), ("lost", 3), ("asked", 1), READY)
    hub.leave()
    _, later = joined(3, port)
    hears(later, ("lost", 4), ("lost", 3), ("asked", 1), READY)
    assert later.empty()


def test_more_news_than_is_read_at_once_arrives_too() -> None:
    hub, _, port = opened(3)
    news = [f"{n:x<1000}" for n in range(200)]
    for text in news:
        hub.tell(text)
    _, late = joined(1, port)
    hears(late, *((text, 0) for text in news))


def test_what_a_host_says_before_it_is_connected_arrives_with_it() -> None:
    with listen(HERE, 0) as taken:
        port = taken.getsockname()[1]
    others: list[Heard] = [queue.Queue(), queue.Queue()]
    hub, early = Hub(OURS, 3, handlers(others[0])), Member(OURS, 1, handlers(others[1]))
    early.tell("asked")
    early.leave()
    meeting = threading.Thread(target=early.join, args=(HERE, port))
    meeting.start()
    hub.open(HERE, port)
    meeting.join(SECONDS)
    early.links[0].cut()
    _, other = joined(2, port)
    hears(others[0], ("asked", 1), READY)
    hears(other, ("asked", 1), READY)
    assert others[0].empty() and other.empty(), "its end is not a death"


def test_a_host_that_falls_silent_is_lost() -> None:
    beats = Beats(seconds=0.1, silent_seconds=2.0)
    _, heard, port = opened(3, beats=beats)
    lively, other = joined(1, port, beats=beats)
    joined(2, port)
    hears(heard, READY, ("lost", 2))
    hears(other, READY, ("lost", 2))
    lively.tell("stop")
    hears(heard, ("stop", 1))


def test_a_long_message_to_one_host_keeps_no_beat_from_the_others() -> None:
    beats = Beats(seconds=0.05)
    hub, heard, port = opened(3, beats=beats)
    joined(1, port, beats=beats)
    other, _ = joined(2, port, beats=beats)
    with hub.links[1]._sending:  # as while a host is slow to take what it is told
        before = other.links[0].heard
        until(lambda: other.links[0].heard - before >= 0.5, seconds=SECONDS)
    hears(heard, READY)
    assert heard.empty()


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


def test_a_stranger_changes_nothing() -> None:
    _, heard, port = opened(3)
    one, others = joined(1, port)
    for said in STRANGE:
        with socket.create_connection((HERE, port)) as stranger:
            stranger.sendall(said)
    with socket.create_connection((HERE, port)) as stranger:
        stranger.settimeout(SECONDS)
        with pytest.raises(OSError):  # closed long before all is sent
            for _ in range(1000):
                stranger.sendall(b"x" * 65536)
    joined(2, port)
    one.tell("stop")
    hears(heard, READY, ("stop", 1))
    hears(others, READY)
    assert heard.empty() and others.empty()


def test_a_host_that_says_nonsense_is_lost_and_the_hub_goes_on() -> None:
    _, heard, port = opened(3)
    one, others = joined(1, port)
    joined(2, port)[0].send(b"1\n")
    hears(heard, READY, ("lost", 2))
    hears(others, READY, ("lost", 2))
    one.tell("stop")
    hears(heard, ("stop", 1))


def answer(stream: socket.socket, number: int, challenge: str = "") -> bytes:
    """Return the hello of a host that knows all there is to know, for one connection or for another."""
    given = json.loads(stream.makefile("rb").readline())["challenge"]
    proof = OURS.proof("host", number, challenge or given, "n")
    return line({"hello": number, "nonce": "n", "proof": proof})


def test_a_proof_is_worth_nothing_on_another_connection_or_twice() -> None:
    hub, heard, port = opened(4)
    with contextlib.ExitStack() as callers:
        one, other, again, beyond, first = (callers.enter_context(dialled(port)) for _ in range(5))
        valid = answer(one, 1)
        for said, stream in ((valid, other), (answer(beyond, 4), beyond), (answer(first, 0), first)):
            stream.sendall(said)
            assert b"welcome" not in rest_of(stream)
        one.sendall(valid)
        assert b"welcome" in one.recv(1000)
        again.sendall(answer(again, 1))
        assert b"welcome" not in rest_of(again), "it is here already"
        assert list(hub.links) == [1] and heard.empty()
        one.close()
        hears(heard, ("lost", 1))


def rest_of(stream: socket.socket) -> bytes:
    """Return what comes until the connection is over."""
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


def test_silent_strangers_are_hung_up_on_and_keep_nobody_out() -> None:
    hub, _, port = opened(2, handshake_seconds=0.5)
    with contextlib.ExitStack() as strangers:
        silent = [strangers.enter_context(dialled(port)) for _ in range(100)]
        joined(1, port)
        assert b"challenge" in rest_of(silent[0]), "and then hung up on"
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
    hub, heard, port = opened(2)
    other = Member(Identity(job, attempt, secret), 1, handlers(heard))
    with pytest.raises(PeerAbsent, match=f"process 0 at 127.0.0.1:{port} is of another job or attempt"):
        other.join(HERE, port, time.monotonic() + 1.0)
    assert heard.empty() and hub.absent == {1} and other.absent == {0}


@pytest.mark.parametrize(
    "said", [b'{"challenge":"aa"}\n', b'{"welcome":"00"}\n{"lost":0}\n', b'{"lost":0}\n', b"x" * (1 << 20)]
)
def test_a_hub_that_cannot_prove_it_either_is_not_believed(said: bytes) -> None:
    heard: Heard = queue.Queue()
    with socket.create_server((HERE, 0)) as impostor:
        member = Member(OURS, 1, handlers(heard))
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
    assert not joining.is_alive() and heard.empty() and not member.links


def absent(member: Member, port: int, deadline: float) -> None:
    """Have a host join where there is no hub of its own."""
    with pytest.raises(PeerAbsent):
        member.join(HERE, port, deadline)


@contextlib.contextmanager
def silent(address: str) -> Iterator[int]:
    """Give a port of an address from which nothing comes back, as of a host that is gone: its queue is full."""
    with socket.socket() as server, contextlib.ExitStack() as queue:
        server.bind((address, 0))
        server.listen(0)
        for _ in range(4):
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


def test_a_name_that_still_stands_for_a_host_that_is_gone_is_looked_up_again() -> None:
    with silent("127.0.0.3") as port, socket.create_server((HERE, port)):
        began = time.monotonic()
        found = dial("127.0.0.3", port, began + SECONDS, lambda: HERE)
        assert found.getpeername()[0] == HERE and time.monotonic() - began < 5
        found.close()


def test_the_hub_may_have_a_connection_for_each_of_many_hosts() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
    try:
        listen(HERE, 0).close()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_hub_at_all_addresses_is_reached_over_both_protocols(address: str) -> None:
    with listen("", 0) as server:
        dial(address, server.getsockname()[1], time.monotonic() + SECONDS).close()
