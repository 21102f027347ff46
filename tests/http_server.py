"""HTTP servers for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler], address: str = "127.0.0.1") -> Iterator[ThreadingHTTPServer]:
    """Serve with a handler on a local port."""
    with ThreadingHTTPServer((address, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def url_of(server: ThreadingHTTPServer) -> str:
    """Return the URL of a server."""
    return f"http://{server.server_address[0]!s}:{server.server_port}"


class FailingBucket(BaseHTTPRequestHandler):
    """A storage server that fails in a way that the client does not retry by itself."""

    def do_GET(self) -> None:
        """Answer that the request failed."""
        self.send_response(400)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing."""
