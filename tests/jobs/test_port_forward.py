"""Forwarded connections: both directions, complete, concurrent; a host that rejects one affects only that one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from xpk.jobs import port_forward
from xpk.model.errors import ConflictError, UsageError


@pytest.fixture
def echo() -> Iterator[socket.socket]:
    """Yield a server that returns its input once its client is done."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(one: socket.socket) -> None:
            with one:
                content = b"".join(iter(lambda: one.recv(4096), b""))
                one.sendall(content[::-1])

        def accept() -> None:
            while True:
                try:
                    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield server


def exchange(address: tuple[str, int], content: bytes) -> bytes:
    with socket.create_connection(address, timeout=10) as mine:
        mine.sendall(content)
        mine.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: mine.recv(4096), b""))


def test_forwarded_data_arrives_in_both_directions(echo: socket.socket) -> None:
    message: list[str] = []
    refuse = threading.Event()

    def connect() -> socket.socket:
        if refuse.is_set():
            raise ConflictError("nothing is listening on port 1 of pod 'p'")
        return socket.create_connection(echo.getsockname())

    with port_forward.listen(0, 8265) as listener:
        threading.Thread(target=port_forward.serve, args=(listener, connect, message.append), daemon=True).start()
        large = bytes(range(256)) * 4096
        assert exchange(listener.getsockname(), large) == large[::-1]
        refuse.set()
        assert exchange(listener.getsockname(), b"") == b""
        refuse.clear()
        assert exchange(listener.getsockname(), b"abc") == b"cba"
    assert message == ["warning: nothing is listening on port 1 of pod 'p'"]


def test_ports_are_read_as_kubectl_reads_them(echo: socket.socket) -> None:
    assert port_forward.parse_ports("8265") == (8265, 8265)
    assert port_forward.parse_ports("9000:8265") == (9000, 8265)
    for wrong in ("", ":", "x", "1:0", "1:70000", "-1"):
        with pytest.raises(UsageError):
            port_forward.parse_ports(wrong)
    taken = echo.getsockname()[1]
    with pytest.raises(ConflictError, match=f"port {taken}") as error:
        port_forward.listen(taken, 8265)
    assert error.value.hint.endswith(f" such as {taken + 1}:8265")
