"""Port forwarding through an API server that implements its protocol on a real socket."""

from __future__ import annotations

import base64
import gc
import hashlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.scripted_server import kubeconfig
from xpk.api.kubernetes import KubernetesApi
from xpk.model.errors import AuthorizationError, ConflictError, XpkError

POD = {"metadata": {"name": "web-0", "namespace": "ml"}}
PORT = 8265


class Server:
    """Handles one request per connection: returns a status, or forwards the port to an upper-casing program."""

    def __init__(self) -> None:
        self.status, self.asked = 101, ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            with one:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    head += one.recv(1)
                lines = head.decode().split("\r\n")
                self.asked = lines[0]
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
                if self.status == 101:
                    self._forward(one, headers["sec-websocket-key"])
                else:
                    one.sendall(f"HTTP/1.1 {self.status} No\r\nContent-Length: 0\r\n\r\n".encode())

    def _forward(self, one: socket.socket, key: str) -> None:
        digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode(), usedforsecurity=False).digest()
        upgrade = ("101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade")
        accept = (
            f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}",
            "Sec-WebSocket-Protocol: v4.channel.k8s.io",
        )
        one.sendall(("HTTP/1.1 " + "\r\n".join((*upgrade, *accept)) + "\r\n\r\n").encode())
        for channel in (0, 1):  # both streams begin with the port
            one.sendall(frame(bytes([channel]) + struct.pack("<H", PORT)))
        first, length = one.recv(2)
        assert first == 0x82
        mask, content = one.recv(4), one.recv(length & 0x7F)
        heard = bytes(byte ^ mask[index % 4] for index, byte in enumerate(content))
        one.sendall(frame(heard[:1] + heard[1:].upper()))
        one.sendall(b"\x88\x00")


def frame(content: bytes) -> bytes:
    """Return a short binary message of a server."""
    return bytes([0x82, len(content)]) + content


@pytest.fixture
def server() -> Iterator[Server]:
    """Yield a server on its own port."""
    made = Server()
    yield made
    made.close()


@pytest.fixture
def api(server: Server, tmp_path: Path) -> KubernetesApi:
    """Return a client of the server."""
    return KubernetesApi(kubeconfig=kubeconfig(tmp_path, "http://{}:{}".format(*server.address)))


def test_data_is_forwarded_in_both_directions(server: Server, api: KubernetesApi) -> None:
    connection = api.connect(POD, PORT)
    connection.sendall(b"hello")
    assert connection.recv(100) == b"HELLO"
    assert connection.recv(100) == b""
    connection.close()
    assert server.asked == f"GET /api/v1/namespaces/ml/pods/web-0/portforward?ports={PORT} HTTP/1.1"


# The client library leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("status", "kind"), [(403, AuthorizationError), (404, ConflictError), (500, XpkError)])
def test_a_rejected_port_forward_is_explained(
    server: Server, api: KubernetesApi, status: int, kind: type[XpkError]
) -> None:
    server.status = status
    with pytest.raises(XpkError) as refused:
        api.connect(POD, PORT)
    assert type(refused.value) is kind and "\n" not in refused.value.message and refused.value.hint
    del refused
    gc.collect()
