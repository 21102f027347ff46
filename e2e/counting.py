"""A proxy for an API server that counts the requests of a command."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.http_server import http_server, url_of

_PASSED_ON = ("Authorization", "Accept", "Content-Type")


@dataclass(slots=True)
class Counter:
    """Counts requests to a server through the proxy of this kubeconfig."""

    kubeconfig: Path
    requests: list[str] = field(default_factory=list)
    pages: int = 0  # of lists, after their first ones

    def taken(self) -> list[str]:
        """Return the requests since the last call, as `GET /path`; further pages of a list are not counted."""
        taken, self.requests = self.requests, []
        return taken


@contextmanager
def counting(kubeconfig: Path, folder: Path) -> Iterator[Counter]:
    """Run a proxy for the server of a kubeconfig; write its own kubeconfig into `folder`."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    counter = Counter(folder / "kubeconfig")
    address, trust = (
        urlsplit(cluster["server"]).netloc,
        ssl.create_default_context(cafile=cluster["certificate-authority"]),
    )

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a body after its headers would wait 40 ms for an acknowledgment

        def pass_on(self) -> None:
            if "continue" in parse_qs(urlsplit(self.path).query):
                counter.pages += 1
            else:
                counter.requests.append(f"{self.command} {urlsplit(self.path).path}")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
            server = http.client.HTTPSConnection(address, context=trust, timeout=60)
            try:
                server.request(self.command, self.path, body, headers)
                answer = server.getresponse()
                content = answer.read()
            finally:
                server.close()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = pass_on

        def log_message(self, format: str, *args: object) -> None:
            """Do nothing."""

    with http_server(Handler) as server:
        cluster.pop("certificate-authority")
        # Clients send credentials only over what looks like TLS.
        cluster["server"] = url_of(server)
        counter.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        counter.kubeconfig.write_text(yaml.safe_dump(config))
        yield counter
