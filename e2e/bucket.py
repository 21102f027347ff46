"""Google Cloud Storage on this machine: fake-gcs-server, in memory, for the length of a test."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.waiting import until

PROGRAM = "fake-gcs-server"
_SECONDS = 120.0


def missing() -> str:
    """Return why no server can be started here, or nothing."""
    return "" if shutil.which(PROGRAM) else f"{PROGRAM} is not on PATH"


@dataclass(frozen=True)
class BucketServer:
    """A running server; clients find it by the environment variable STORAGE_EMULATOR_HOST = `url`."""

    url: str
    log: Path  # one line a request
    process: subprocess.Popen[bytes]

    def create_bucket(self, name: str) -> None:
        """Create an empty bucket."""
        body = json.dumps({"name": name}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/storage/v1/b?project=e2e", body, headers)
        urllib.request.urlopen(request, timeout=_SECONDS).close()

    def requests(self) -> list[str]:
        """Return the lines that the server has written about requests."""
        return [line for line in self.log.read_text().splitlines() if " HTTP/1.1" in line]

    def sent(self) -> int:
        """Return how many bytes the server has written so far: answers and, a thousandth of them, its log."""
        counters = dict(line.split(": ") for line in Path(f"/proc/{self.process.pid}/io").read_text().splitlines())
        return int(counters["wchar"])

    def pause(self) -> None:
        """Stop answering; connections stay open, as behind a network that loses everything."""
        self.process.send_signal(signal.SIGSTOP)
        # The signal reaches one thread after the other; until then the rest still answer.
        threads = Path(f"/proc/{self.process.pid}/task")
        until(lambda: {file.read_text().rpartition(")")[2].split()[0] for file in threads.glob("*/stat")} == {"T"})

    def resume(self) -> None:
        """Answer again, also what came in between."""
        self.process.send_signal(signal.SIGCONT)


class Proxy(ThreadingHTTPServer):
    """A server that passes requests on to a bucket server, by a handler that derives from `Forwarding`."""

    daemon_threads = True

    def __init__(self, server: BucketServer, handler: type[Forwarding]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.upstream = server.url.removeprefix("http://")
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Forwarding(BaseHTTPRequestHandler):
    """Passes requests on; a derived class decides about each request in `treat`."""

    server: Proxy

    def log_message(self, *_: Any) -> None:
        """Do nothing."""

    def treat(self, body: bytes) -> None:
        """Respond to a request, or lose it."""
        self.respond(*self.forward(body))

    def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Send the request to the bucket server; return status, headers and content of the response."""
        with contextlib.closing(http.client.HTTPConnection(self.server.upstream, timeout=30)) as connection:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def respond(self, status: int, headers: list[tuple[str, str]], content: bytes, sent: int | None = None) -> None:
        """Respond with a content, of which only the first `sent` bytes are sent."""
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:sent])
        if sent is not None:
            self.close_connection = True

    def _treat(self) -> None:
        self.treat(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    do_GET = do_POST = do_PUT = do_DELETE = _treat


@contextmanager
def bucket_server(address: str = "127.0.0.1") -> Iterator[BucketServer]:
    """Run a server that keeps its objects in memory and is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bucket-") as folder, _running(Path(folder), address) as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    """A server with a bucket `drills`, which clients of Google Cloud Storage use."""
    with bucket_server() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", running.url)
        running.create_bucket("drills")
        yield running


@contextmanager
def _running(folder: Path, address: str) -> Iterator[BucketServer]:
    port = free_port()
    argv = [
        PROGRAM, "-scheme", "http", "-backend", "memory", "-host", address, "-port", str(port),
        "-public-host", f"{address}:{port}", "-external-url", f"http://{address}:{port}",
    ]  # fmt: skip
    log = folder / f"{PROGRAM}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(argv, stdout=file, stderr=file)
    server = BucketServer(f"http://{address}:{port}", log, process)
    try:
        _await_ready(server)
        yield server
    finally:
        server.resume()
        process.terminate()
        process.wait(timeout=_SECONDS)


def _await_ready(server: BucketServer) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{server.url}/storage/v1/b?project=e2e", timeout=_SECONDS).close()
            return
        except urllib.error.URLError:
            assert server.process.poll() is None and time.monotonic() < deadline, server.log.read_text()
            time.sleep(0.05)
