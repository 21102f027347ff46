"""Streams of an API server over TLS."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from kubernetes.client import ApiClient, Configuration
from urllib3.exceptions import HTTPError

from tests.http_server import http_server
from trainer.hosts.coordinator_tls import pem_files
from xpk.api.limits import DEFAULT
from xpk.api.transport import Transport

LONG = b"x" * 50_000


class Halves(BaseHTTPRequestHandler):
    """A watch of two events; the first TLS record has the first event and a part of the second one."""

    def do_GET(self) -> None:
        """Send both events at once."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chunks = b"".join(b"%x\r\n%s\n\r\n" % (len(line) + 1, line) for line in (b"first", LONG))
        with suppress(OSError):
            self.wfile.write(chunks[:1000])
            self.wfile.write(chunks[1000:])
            self.rfile.read(1)  # until the client closes the connection

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing."""


@contextmanager
def tls_server(folder: Path) -> Iterator[str]:
    """Serve over TLS on a local port; yield the URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority, certificate, key = pem_files(b"s" * 64, "spiffe://test")
    (folder / "authority.pem").write_bytes(authority)
    (folder / "server.pem").write_bytes(certificate + key)
    context.load_cert_chain(folder / "server.pem")
    with http_server(Halves) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        yield f"https://127.0.0.1:{server.server_port}"


def test_a_stream_that_is_ended_yields_nothing_undecrypted(tmp_path: Path) -> None:
    """`SSLSocket.shutdown` removes the TLS layer: what arrived before is then read as it is, encrypted."""
    with tls_server(tmp_path) as url:
        settings = Configuration(host=url)
        settings.ssl_ca_cert, settings.assert_hostname = str(tmp_path / "authority.pem"), False
        transport = Transport(ApiClient(settings), time.sleep, DEFAULT)
        lines, ends = [], time.monotonic() + 3.0  # enough for a busy machine to connect
        with suppress(HTTPError):
            for line in transport.stream("/", {}, quiet=10, ends=ends):
                lines.append(line)
                time.sleep(max(0.0, ends - time.monotonic()) + 0.5)  # the stream is ended meanwhile
        assert lines[0] == "first" and set(lines[1:]) <= {LONG.decode()}
