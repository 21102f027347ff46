"""The line between hosts: agreements, deaths, and orderly ends that are no deaths."""

import contextlib
import dataclasses
import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.trainer.small import WORKLOADS, free_ports
from trainer.data.dataset import TokenFile
from trainer.errors import AddressError, FatalError, PeerAbsent
from trainer.hosts.bootstrap import own_address
from trainer.hosts.connection import dial, line, listen, proof
from trainer.hosts.peers import Peers

SECONDS = 20.0
Heard = queue.Queue[tuple[str, int]]


def host(
    process_id: int, processes: int, heard: Heard, attempt: int = 0, job: Sequence[str] = (), **more: Any
) -> Peers:
    return Peers(
        process_id,
        processes,
        attempt,
        job,
        on_lost=lambda peer: heard.put(("lost", peer)),
        on_told=lambda what, by: heard.put((what, by)),
        **more,
    )


def together(actions: list[Callable[[], object]], seconds: float = SECONDS) -> list[object]:
    """Do all at the same time, as hosts would, and return the results."""
    results: list[object] = [None] * len(actions)

    def do(n: int) -> None:
        results[n] = actions[n]()

    threads = [threading.Thread(target=do, args=(n,), daemon=True) for n in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "still waiting"
    return results


def connected(processes: int, port: int = 0, **more: Any) -> tuple[list[Peers], list[Heard]]:
    heard: list[Heard] = [queue.Queue() for _ in range(processes)]
    hosts = [host(n, processes, heard[n], **more) for n in range(processes)]
    port = port or free_ports()
    together([lambda peers=peers: peers.connect("127.0.0.1", port, SECONDS) for peers in hosts])  # type: ignore[misc]
    return hosts, heard


def test_hosts_agree_and_leave_without_anyone_lost() -> None:
    hosts, heard = connected(3)
    for n, peers in enumerate(hosts):
        peers.report("size", n * 10)
    assert hosts[0].collect("size") == [0, 10, 20]
    hosts[0].announce("step", {"chosen": 7})
    assert together([lambda peers=peers: peers.await_("step") for peers in hosts]) == [{"chosen": 7}] * 3  # type: ignore[misc]
    together([lambda peers=peers: peers.barrier("end") for peers in hosts])  # type: ignore[misc]
    together([peers.leave for peers in reversed(hosts)])
    assert [h.empty() for h in heard] == [True] * 3


def test_hosts_are_told_of_a_data_set_of_very_many_files() -> None:
    hosts, heard = connected(2)
    names = [f"{nth:016x}" for nth in range(200_000)]
    file = dataclasses.asdict(TokenFile("", 2**28, "", 10**6))
    files = [file | {"name": f"tokens-{name}.bin", "digest": name, "index": name} for name in names]
    said = [{"path": "gs://bucket/folder/tokens.json", "files": files}, [2**21] * len(files)]

    def hear(peers: Peers) -> bool:
        return bool(peers.await_("corpus") == said)

    hears = [lambda peers=peers: hear(peers) for peers in hosts]
    assert together([lambda: hosts[0].announce("corpus", said), *hears], 5 * SECONDS) == [None, True, True]
    assert [h.empty() for h in heard] == [True] * 2


def test_what_is_too_long_to_be_told_is_said_and_loses_nobody() -> None:
    hosts, heard = connected(2, max_message_bytes=1000)
    with pytest.raises(FatalError, match="cannot announce corpus to the hosts: 1,036 bytes are more than 1,000"):
        hosts[0].announce("corpus", "x" * 1000)
    hosts[0].tell("fatal")
    assert heard[1].get(timeout=SECONDS) == ("fatal", 0)
    assert heard[0].empty()


def test_a_long_message_to_one_host_keeps_no_beat_from_the_others() -> None:
    hosts, heard = connected(3, beat_seconds=0.05)
    with hosts[0]._links[1]._sending:  # as while a host is slow to take what it is told
        before = hosts[2]._links[0].heard
        deadline = time.monotonic() + SECONDS
        while hosts[2]._links[0].heard - before < 0.5:
            assert time.monotonic() < deadline, "no beat"
            time.sleep(0.01)
    assert [h.empty() for h in heard] == [True] * 3


def test_one_host_tells_all_others() -> None:
    hosts, heard = connected(3)
    hosts[2].tell("stop")
    assert [heard[n].get(timeout=SECONDS) for n in (0, 1)] == [("stop", 2)] * 2
    assert heard[2].empty()


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
    b'{"hello":1,"nonce":[],"proof":1}\n',
]


def test_a_stranger_changes_nothing() -> None:
    port = free_ports()
    hosts, heard = connected(3, port)
    for said in STRANGE:
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(said)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.settimeout(SECONDS)
        with pytest.raises(OSError):  # closed long before all is sent
            for _ in range(1000):
                stranger.sendall(b"x" * 65536)
    hosts[1].tell("stop")
    assert [heard[n].get(timeout=SECONDS) for n in (0, 2)] == [("stop", 1)] * 2
    together([lambda peers=peers: peers.barrier("end") for peers in hosts])  # type: ignore[misc]
    assert [h.empty() for h in heard] == [True] * 3


def answer(stream: socket.socket, peer: int, challenge: str = "") -> bytes:
    """Return the hello of a host that knows all there is to know, for one connection or for another."""
    given = json.loads(stream.makefile("rb").readline())["challenge"]
    said = proof(b"s", "host", [], 0, peer, challenge or given, "n")
    return line({"hello": peer, "nonce": "n", "proof": said})


def test_a_proof_is_worth_nothing_on_another_connection_or_twice() -> None:
    port, heard = free_ports(), queue.Queue()  # type: ignore[var-annotated]
    hub = host(0, 4, heard, secret=b"s")
    with pytest.raises(PeerAbsent):  # its listener stays
        hub.connect("127.0.0.1", port, 0.1)
    with contextlib.ExitStack() as callers:
        one, other, again, wrong = (callers.enter_context(dialled(port)) for _ in range(4))
        valid = answer(one, 1)
        for said, stream in ((valid, other), (answer(wrong, 4), wrong)):
            stream.sendall(said)
            assert b"welcome" not in rest_of(stream)
        one.sendall(valid)
        assert b"welcome" in one.recv(1000)
        again.sendall(answer(again, 1))
        assert b"welcome" not in rest_of(again), "it is here already"
        assert hub.present == 2 and heard.empty()
        one.close()
        assert heard.get(timeout=SECONDS) == ("lost", 1)


def rest_of(stream: socket.socket) -> bytes:
    """Return what comes until the connection is over."""
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while data := stream.recv(1000):
            content += data
    return content


def test_silent_strangers_are_hung_up_on_and_keep_nobody_out() -> None:
    port = free_ports()
    with contextlib.ExitStack() as strangers:
        hub, other = host(0, 2, queue.Queue(), handshake_seconds=0.5), host(1, 2, queue.Queue())
        meeting = threading.Thread(target=lambda: hub.connect("127.0.0.1", port, SECONDS))
        meeting.start()
        silent = [strangers.enter_context(dialled(port)) for _ in range(100)]
        other.connect("127.0.0.1", port, SECONDS)
        meeting.join(SECONDS)
        assert b"challenge" in rest_of(silent[0]), "and then hung up on"
        assert hub.present == 2


def dialled(port: int) -> socket.socket:
    """Return a connection to a hub, which may only be about to listen."""
    sock = dial("127.0.0.1", port, time.monotonic() + SECONDS)
    sock.settimeout(SECONDS)
    return sock


def test_a_host_that_says_nonsense_is_lost_and_the_hub_goes_on() -> None:
    hosts, heard = connected(3)
    hosts[2]._links[0].sock.sendall(b"1\n")
    assert [heard[n].get(timeout=SECONDS) for n in (0, 1)] == [("lost", 2)] * 2
    hosts[1].tell("stop")
    assert heard[0].get(timeout=SECONDS) == ("stop", 1)


@pytest.mark.parametrize(
    ("attempt", "job", "secret"),
    [(1, ["a", ""], b"s"), (0, ["b", ""], b"s"), (0, ["a", "uid"], b"s"), (0, ["a", ""], b""), (0, ["a", ""], b"t")],
)
def test_a_host_of_another_job_or_attempt_or_with_another_secret_does_not_join(
    attempt: int, job: list[str], secret: bytes
) -> None:
    port, heard = free_ports(), [queue.Queue(), queue.Queue()]  # type: ignore[var-annotated]
    hub, other = host(0, 2, heard[0], job=["a", ""], secret=b"s"), host(1, 2, heard[1], attempt, job, secret=secret)

    def absent(peers: Peers) -> None:
        with pytest.raises(PeerAbsent):
            peers.connect("127.0.0.1", port, 1.0)

    together([lambda: absent(hub), lambda: absent(other)])
    assert heard[0].empty() and heard[1].empty()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=rf"127\.0\.0\.1:{port}: Address already in use"):
            host(0, 2, queue.Queue()).connect("127.0.0.1", port, 1.0)


def test_a_host_that_never_comes_is_named() -> None:
    hub = host(0, 3, queue.Queue())
    with pytest.raises(PeerAbsent, match=r"\[1, 2\]"):
        hub.connect("127.0.0.1", free_ports(), 0.2)


CHILD = """
import sys, threading
from trainer.hosts.peers import Peers
peers = Peers(int(sys.argv[1]), 3, on_lost=lambda peer: (print("lost", peer, flush=True)), on_told=print)
peers.connect("127.0.0.1", int(sys.argv[2]), 20)
print("up", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize(("killed", "knows"), [(2, (0, 1)), (0, (1, 2))])
def test_a_killed_host_is_noticed_by_all(killed: int, knows: tuple[int, ...]) -> None:
    port, env = free_ports(), os.environ | {"PYTHONPATH": str(WORKLOADS)}
    hosts = [
        subprocess.Popen([sys.executable, "-c", CHILD, str(n), str(port)], env=env, stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    try:
        assert [process.stdout.readline() for process in hosts if process.stdout] == ["up\n"] * 3
        hosts[killed].send_signal(signal.SIGKILL)
        for n in knows:
            stdout = hosts[n].stdout
            assert stdout is not None
            assert stdout.readline() == f"lost {killed}\n"
    finally:
        for process in hosts:
            process.kill()
            process.communicate()


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
    with silent("127.0.0.3") as port, socket.create_server(("127.0.0.1", port)):
        began = time.monotonic()
        found = dial("127.0.0.3", port, began + SECONDS, lambda: "127.0.0.1")
        assert found.getpeername()[0] == "127.0.0.1" and time.monotonic() - began < 5
        found.close()


def test_the_first_host_waits_for_its_name_to_stand_for_itself() -> None:
    port = free_ports()
    told = iter([("192.0.2.1", port), ("127.0.0.1", port)])  # nobody's address, for documents only
    assert own_address(lambda: next(told)) == ("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(AddressError, match="already in use"):
        own_address(lambda: ("127.0.0.1", port))


def test_process_0_may_have_a_connection_for_each_of_many_hosts() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
    try:
        listen("127.0.0.1", 0).close()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
