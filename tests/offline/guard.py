"""A guard against network requests in all tests, both of a test and of the processes that it starts.

Python's own sockets are blocked by `sitecustomize`, here and in every Python process that inherits this environment.
gRPC has its own sockets: it uses a proxy that records destinations and forwards nothing. Other programs (those of
Kubernetes, Docker) are not checked.
"""

from __future__ import annotations

import atexit
import os
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.offline import sitecustomize

FOLDER = Path(__file__).parent
ONLINE = dict(os.environ)  # for the one test that installs packages


class _Proxy(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        asked = self.rfile.readline(1024).decode(errors="replace").split()
        with LOG.open("a", encoding="utf-8") as file:
            file.write(f"gRPC: {asked[1] if len(asked) > 1 else '?'}\n")
        self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")


def _new_log() -> Path:
    number, name = tempfile.mkstemp(prefix="offline-", suffix=".log")
    os.close(number)
    atexit.register(Path(name).unlink, missing_ok=True)
    return Path(name)


def _begin() -> None:
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Proxy)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="offline-proxy", daemon=True).start()
    # Behind a proxy only the proxy would see a request's destination: Google's hosts must not be contacted through one.
    direct = [os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "", "localhost,127.0.0.1,::1"]
    no_proxy = ",".join(filter(None, [*direct, *(f".{host}" for host in sitecustomize.GOOGLES)]))
    os.environ |= {
        "OFFLINE_LOG": str(LOG),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")])),
        "no_proxy": no_proxy,
        "NO_PROXY": no_proxy,
        "grpc_proxy": f"http://127.0.0.1:{server.server_address[1]}",
        "no_grpc_proxy": "localhost,127.0.0.1,127.0.0.0/8,::1",
        "CLOUDSDK_CONFIG": str(FOLDER / "no-gcloud"),  # a user's own credentials are not used here
    }
    os.environ.pop("GOOGLE_APPLICATION_CREDENTIALS", None)


def take_refused() -> list[str]:
    """Return the blocked processes and destinations since the last call, one line each."""
    if not LOG.stat().st_size:
        return []
    lines = LOG.read_text(encoding="utf-8").splitlines()
    LOG.write_text("")
    return lines


@pytest.fixture(autouse=True)
def nothing_leaves() -> Iterator[None]:
    """Fail a test that tried to connect to another machine, even if it ignored the error."""
    yield
    if refused := take_refused():
        pytest.fail("a test may only talk to this machine and to private networks:\n" + "\n".join(refused))


LOG = _new_log()
_begin()
