"""Connections between hosts: agreements, losses, and orderly ends."""

import dataclasses
import os
import queue
import signal
import socket
import subprocess
import sys

import pytest

from tests.ports import free_port
from tests.trainer.hosts.connections import SECONDS, connected, host, together
from tests.trainer.small import WORKLOADS
from trainer.data.dataset import TokenFile
from trainer.errors import AddressError, FatalError, PeerAbsent
from trainer.hosts.bootstrap import own_address
from trainer.hosts.peers import Peers


def test_hosts_communicate_and_leave_without_a_loss() -> None:
    hosts, heard = connected(3)
    for n, peers in enumerate(hosts):
        peers.report("size", n * 10)
    assert hosts[0].collect("size") == [0, 10, 20]
    hosts[0].announce("step", {"chosen": 7})
    assert together([lambda peers=peers: peers.await_("step") for peers in hosts]) == [{"chosen": 7}] * 3  # type: ignore[misc]
    together([lambda peers=peers: peers.barrier("end") for peers in hosts])  # type: ignore[misc]
    together([peers.leave for peers in reversed(hosts)])
    assert [h.empty() for h in heard] == [True] * 3


def test_a_data_set_of_very_many_files_is_announced() -> None:
    hosts, heard = connected(2)
    names = [f"{nth:016x}" for nth in range(200_000)]
    file = dataclasses.asdict(TokenFile("", 2**28, "", 10**6))
    files = [file | {"name": f"tokens-{name}.bin", "digest": name, "index": name} for name in names]
    output = [{"path": "gs://bucket/folder/tokens.json", "files": files}, [2**21] * len(files)]

    def hear(peers: Peers) -> bool:
        return bool(peers.await_("corpus") == output)

    hears = [lambda peers=peers: hear(peers) for peers in hosts]
    assert together([lambda: hosts[0].announce("corpus", output), *hears], 5 * SECONDS) == [None, True, True]
    assert [h.empty() for h in heard] == [True] * 2


def test_an_announcement_that_is_too_long_is_reported_without_a_loss() -> None:
    hosts, heard = connected(2, max_message_bytes=1000)
    with pytest.raises(FatalError, match="cannot announce corpus to the hosts: 1,036 bytes are more than 1,000"):
        hosts[0].announce("corpus", "x" * 1000)
    hosts[0].broadcast("fatal")
    assert heard[1].get(timeout=SECONDS) == ("fatal", 0)
    assert heard[0].empty()


def test_one_host_broadcasts_to_all_others() -> None:
    hosts, heard = connected(3)
    hosts[2].broadcast("stop")
    assert [heard[n].get(timeout=SECONDS) for n in (0, 1)] == [("stop", 2)] * 2
    assert heard[2].empty()


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=rf"127\.0\.0\.1:{port}: Address already in use"):
            host(0, 2, queue.Queue()).connect("127.0.0.1", port, 1.0)


def test_a_host_that_never_connects_is_named() -> None:
    hub = host(0, 3, queue.Queue())
    with pytest.raises(PeerAbsent, match=r"\[1, 2\]"):
        hub.connect("127.0.0.1", free_port(), 0.2)


CHILD = """
import sys, threading
from trainer.hosts.peers import Peers
peers = Peers(int(sys.argv[1]), 3, on_lost=lambda peer: (print("lost", peer, flush=True)), on_message=print)
peers.connect("127.0.0.1", int(sys.argv[2]), 20)
print("up", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize(("killed", "knows"), [(2, (0, 1)), (0, (1, 2))])
def test_a_killed_host_is_detected_by_all(killed: int, knows: tuple[int, ...]) -> None:
    port, env = free_port(), os.environ | {"PYTHONPATH": str(WORKLOADS)}
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


FIRST_OF_SLICE = """
import dataclasses, math, sys, threading
from trainer.hosts.peers import Peers
from xpk_shared.slices.registry import BEATS
# Without the limit below, silence would be no loss at all.
beats = dataclasses.replace(BEATS, silent_seconds=math.inf)
peers = Peers(int(sys.argv[1]), 2, beats=beats, on_lost=lambda peer: print("lost", peer, flush=True), on_message=print)
peers.connect("127.0.0.1", int(sys.argv[2]), 20)
peers.limit_silence(1.5)
print("up", flush=True)
threading.Event().wait()
"""


def test_a_frozen_host_of_an_elastic_slice_is_detected_by_the_limit_of_silence() -> None:
    port, env = free_port(), os.environ | {"PYTHONPATH": str(WORKLOADS)}
    command = [sys.executable, "-c", FIRST_OF_SLICE]
    hosts = [
        subprocess.Popen([*command, str(n), str(port)], env=env, stdout=subprocess.PIPE, text=True) for n in range(2)
    ]
    try:
        assert [process.stdout.readline() for process in hosts if process.stdout] == ["up\n"] * 2
        hosts[1].send_signal(signal.SIGSTOP)
        stdout = hosts[0].stdout
        assert stdout is not None
        assert stdout.readline() == "lost 1\n"
    finally:
        for process in hosts:
            process.kill()
            process.communicate()


def test_process_0_waits_until_its_name_resolves_to_itself() -> None:
    port = free_port()
    message = iter(
        [("192.0.2.1", port)] * 3 + [("127.0.0.1", port)]
    )  # an address without a host, reserved for documentation
    assert own_address(lambda: next(message)) == ("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(AddressError, match="already in use"):
        own_address(lambda: ("127.0.0.1", port))
