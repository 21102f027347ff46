"""A proxy before the object store that adds up what it is read of: the bytes of every answer, by object."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_HOP = ("transfer-encoding", "content-length", "connection")


class Reading(ThreadingHTTPServer):
    """The proxy; `answers` has (path, bytes of content) of every GET that was answered with content."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, there: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.there = there  # host:port of the store
        self.answers: list[tuple[str, int]] = []

    @property
    def url(self) -> str:
        """What clients take for the store."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Reading
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        there = http.client.HTTPConnection(self.server.there, timeout=60)
        try:
            there.request(self.command, self.path, body, dict(self.headers))
            answer = there.getresponse()
            content = answer.read()
        finally:
            there.close()
        if self.command == "GET" and answer.status in (200, 206):
            self.server.answers.append((unquote(urlsplit(self.path).path), len(content)))
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _pass


@contextmanager
def reading(url: str) -> Iterator[Reading]:
    """Run a proxy for the store at `url`."""
    with Reading(url.removeprefix("http://")) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
