"""A proxy before the object store that adds up what it is read of: the bytes of every answer, by object.

It passes bytes on as they come and only looks at how requests and answers begin, so that clients and the store speak
with each other as without it.
"""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_ASKED = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.[01]\r\n")
_GIVEN = re.compile(rb"HTTP/1\.[01] 20[06] ")
_CHUNK = 1 << 16


@dataclass(slots=True)
class Answer:
    """What was read of an object by one request: bytes of content, so far."""

    path: str
    size: int = 0


class Reading(socketserver.ThreadingTCPServer):
    """The proxy; `answers` has one for every GET that was answered with content."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, store: str) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        host, _, port = store.rpartition("/")[2].partition(":")
        self.store = (host, int(port))
        self.answers: list[Answer] = []

    @property
    def url(self) -> str:
        """What clients take for the store."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Connection(socketserver.BaseRequestHandler):
    """One connection, on which a client asks for one object after the other."""

    server: Reading
    _asked = b""  # the path of the request under way, if it is a GET
    _head = b""  # of the answer to it, until that is whole
    _answer: Answer | None = None  # from then on

    def handle(self) -> None:
        """Pass bytes on in both directions until both sides are done."""
        with socket.create_connection(self.server.store) as store:
            for end in (store, self.request):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._back, args=(store,), daemon=True)
            back.start()
            with contextlib.suppress(OSError):
                while data := self.request.recv(_CHUNK):
                    # A client has its answer before it asks again: what it asks is at the beginning of what it sends.
                    if begin := _ASKED.match(data):
                        self._asked = begin[2] if begin[1] == b"GET" else b""
                        self._head, self._answer = b"", None
                    store.sendall(data)
            with contextlib.suppress(OSError):
                store.shutdown(socket.SHUT_WR)
            back.join()

    def _back(self, store: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := store.recv(_CHUNK):
                if self._asked:
                    self._count(data)
                self.request.sendall(data)
        with contextlib.suppress(OSError):
            self.request.shutdown(socket.SHUT_WR)

    def _count(self, data: bytes) -> None:
        if self._answer is None:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if end and not _GIVEN.match(head):
                self._asked = b""
            if not end or not self._asked:
                return
            self._answer = Answer(unquote(urlsplit(self._asked.decode()).path))
            self.server.answers.append(self._answer)
        self._answer.size += len(data)


@contextmanager
def reading(url: str) -> Iterator[Reading]:
    """Run a proxy for the store at `url`."""
    with Reading(url) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
