"""A browser's side of the console's protocol."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field


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


def shows(listener: Listener, part: str, text: str) -> Callable[[], bool]:
    """Return a condition: the browser shows a text in a part of the page."""
    return lambda: text in listener.parts.get(part, "")


@dataclass(kw_only=True)
class Browser:
    """A browser of a console: the server's port, its tokens so far, and the cookie."""

    port: int
    tokens: list[str]
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
