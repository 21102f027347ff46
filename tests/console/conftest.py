"""A console of a local cluster, served as `xpk serve` does, and a browser's side of the protocol."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn

from tests.cli.conftest import state as state
from tests.waiting import until
from xpk import create_cluster
from xpk.console.access import Access
from xpk.console.cluster_reader import ClusterReader
from xpk.console.clusters import open_clusters
from xpk.console.feed import Feed
from xpk.console.server import application, make_server, open_socket
from xpk.console.views import Views

CLUSTER, COOKIE = "dev", "xpk-console"


@dataclass
class Listener:
    """A browser that listens to events. `parts`: the page as it shows it; `sizes`: bytes of each event."""

    parts: dict[str, str] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)

    def listen(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        """Read events until the connection ends."""
        with closing(connection), response, suppress(OSError, http.client.HTTPException):
            while line := response.readline():
                if line.startswith(b"data: "):
                    self.sizes.append(len(line))
                    self.parts |= json.loads(line[6:])


@dataclass
class Console:
    """A running server: its port, its tokens so far, its feed."""

    port: int
    tokens: list[str]
    feed: Feed
    session: str = ""

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Mapping[str, str], str]:
        """Return status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        body = response.read().decode()
        connection.close()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, body

    def log_in(self) -> dict[str, str]:
        """Exchange the newest token and return the header with the cookie."""
        if not self.session:
            status, headers, _ = self.get(f"/?token={self.tokens[-1]}")
            assert status == 303
            self.session = headers["set-cookie"].partition(";")[0]
        return {"Cookie": self.session}

    def open(self, query: str = "") -> tuple[Listener, Callable[[], None]]:
        """Return a listener, and a function that ends its connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", f"/events?{query}", headers=self.log_in())
        response = connection.getresponse()
        assert response.status == 200
        listener = Listener()
        threading.Thread(target=listener.listen, args=(connection, response), daemon=True).start()

        def close() -> None:
            connection.sock.shutdown(socket.SHUT_RDWR)

        return listener, close


@pytest.fixture
def serve() -> Iterator[Callable[[list[ClusterReader]], Console]]:
    """Return a function that serves a console of clusters."""
    servers: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(readers: list[ClusterReader]) -> Console:
        tokens: list[str] = []
        feed = Feed(readers, Views(tuple(reader.name for reader in readers)))
        listening = open_socket("127.0.0.1", 0)
        server = make_server(application(feed, Access(tokens.append), cookie=COOKIE))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        servers.append((server, thread))
        until(lambda: server.started)
        return Console(listening.getsockname()[1], tokens, feed)

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def console(state: Path, serve: Callable[[list[ClusterReader]], Console]) -> Console:
    """Return the console of a local cluster of two slices with one host each."""
    create_cluster(CLUSTER, "v5litepod-1", num_slices=2)
    return serve(open_clusters([CLUSTER], "default", None))
