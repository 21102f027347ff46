"""An API server with one workload that misbehaves in a selectable mode."""

from __future__ import annotations

import copy
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.http_server import http_server, url_of

SPEC = {
    "replicatedJobs": [
        {
            "name": "slice-job",
            "replicas": 1,
            "template": {"spec": {"parallelism": 1, "template": {"spec": {"containers": [{"name": "host"}]}}}},
        }
    ]
}
META = {"name": "w", "namespace": "default", "uid": "u1", "resourceVersion": "5"}
JOBSET: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {**META, "creationTimestamp": "2026-11-23T10:00:00Z", "labels": {"xpk.google.com/workload": "w"}},
    "spec": SPEC,
    "status": {"restarts": 0},
}
POD: dict[str, Any] = {
    "metadata": {
        "name": "w-0", "namespace": "default", "uid": "p1", "resourceVersion": "6",
        "creationTimestamp": "2026-11-23T10:00:00Z",
        "labels": {"jobset.sigs.k8s.io/jobset-uid": "u1", "jobset.sigs.k8s.io/jobset-name": "w"},
    },
    "spec": {"nodeName": "n", "containers": [{"name": "host"}]},
    "status": {"phase": "Running"},
}  # fmt: skip
LINE = b"2026-11-23T10:00:01.000000001Z hello\n"


def listed(*items: Any, more: str = "") -> dict[str, Any]:
    """Return a list of objects."""
    return {"kind": "List", "metadata": {"resourceVersion": "10", "continue": more}, "items": list(items)}


def status(code: int, message: str = "boom", **fields: Any) -> dict[str, Any]:
    """Return an error status as API servers write it."""
    return {"kind": "Status", "status": "Failure", "code": code, "message": message, **fields}


def event(kind: str, obj: object) -> bytes:
    """Return one line of a watch."""
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def jobset(*, remove: str = "", **changes: Any) -> dict[str, Any]:
    """Return the workload, with invalid values for fields by path, such as `spec__replicatedJobs`."""
    made = copy.deepcopy(JOBSET)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = made
        for item in parents:
            place = place[item]
        place[last] = value
    if remove:
        del made[remove]
    return made


class Request(BaseHTTPRequestHandler):
    """One connection to the server, with the building blocks of its modes."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body after its headers would wait 40 ms for an acknowledgment
    mode: Callable[[Request], None]
    seen: list[tuple[str, str]]

    def do(self) -> None:
        """Answer a request in the server's mode."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append((self.command, self.path))
        with suppress(OSError):
            type(self).mode(self)

    do_GET = do_POST = do_PATCH = do_DELETE = do

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing."""

    @property
    def bare(self) -> str:
        """The path without its query."""
        return self.path.partition("?")[0]

    @property
    def is_watch(self) -> bool:
        """Return whether a request is a watch."""
        return "watch=1" in self.path

    def send(self, code: int, body: object, **headers: str) -> None:
        """Send a complete response, of bytes or of a value as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def begin(self, length: int | None = None) -> None:
        """Send the headers of a response that is sent in parts."""
        self.send_response(200)
        self.send_header(*(("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))))
        self.end_headers()
        self.close_connection = True

    def chunk(self, content: bytes) -> None:
        """Send one part."""
        self.wfile.write(b"%x\r\n" % len(content) + content + b"\r\n")
        self.wfile.flush()

    def well(self, **others: Any) -> None:
        """Respond correctly; `others` are objects by plural, as lists or a watch."""
        plural = self.bare.split("/")[-1]
        if self.bare.endswith("/log"):
            self.send(200, others.get("log", LINE))
        elif self.is_watch:
            self.send(200, others.get("watch", b""))
        elif self.bare.endswith("/jobsets/w"):
            self.send(200, others.get("jobset", JOBSET))
        elif self.bare.endswith("/pods/w-0"):
            self.send(200, {**POD, "status": {"phase": "Succeeded"}})
        else:
            there = {"jobsets": [others.get("jobset", JOBSET)], "pods": [POD]}
            self.send(200, listed(*others.get(plural, there.get(plural, []))))


@contextmanager
def serving(mode: Callable[[Request], None]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Serve in a mode on a local port; yield the URL and the received requests."""
    handler = type("Handler", (Request,), {"mode": staticmethod(mode), "seen": []})
    with http_server(handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        yield url_of(server), handler.seen  # type: ignore[attr-defined]


def sends(code: int, body: object, **headers: str) -> Callable[[Request], None]:
    """Respond to every request in this way."""
    return lambda request: request.send(code, body, **headers)


def watches(lines: bytes, code: int = 200) -> Callable[[Request], None]:
    """Respond to watches in this way, and correctly to everything else."""
    return lambda request: request.send(code, lines) if request.is_watch else request.well()


def has(**others: Any) -> Callable[[Request], None]:
    """Respond correctly, with additional objects."""
    return lambda request: request.well(**others)


def logs(*parts: bytes, times: int = 1) -> Callable[[Request], None]:
    """Send a log in parts."""

    def answer(request: Request) -> None:
        if not request.bare.endswith("/log"):
            return request.well()
        request.begin()
        for part in [*parts] * times:
            request.chunk(part)
        return request.chunk(b"")

    return answer


def cut(request: Request) -> None:
    """Close the connection in the middle of a response of known length."""
    request.begin(5000)
    request.wfile.write(b'{"kind":"JobSet","meta')


def cut_unnoticed(request: Request) -> None:
    """Close the connection in the middle of a response of unknown length."""
    request.send_response(200)
    request.end_headers()
    request.close_connection = True
    request.wfile.write(b'{"kind":"JobSet","meta')


def cut_watch(request: Request) -> None:
    """End a watch in the middle of a chunk."""
    if not request.is_watch:
        return request.well()
    request.begin()
    request.wfile.write(b"ffff\r\n" + event("MODIFIED", JOBSET)[:50])
    return None


def raw(content: bytes) -> Callable[[Request], None]:
    """Send bytes that are not HTTP."""

    def answer(request: Request) -> None:
        request.close_connection = True
        request.wfile.write(content)

    return answer


def reset(request: Request) -> None:
    """Reset the connection."""
    request.close_connection = True
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.connection.close()


def silent(request: Request) -> None:
    """Accept the request and send nothing."""
    _patiently(lambda: None)


def drip(request: Request) -> None:
    """Send a byte from time to time."""
    request.begin(100_000)
    _patiently(lambda: request.wfile.write(b" "))


def drip_headers(request: Request) -> None:
    """Send a byte of the headers from time to time."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    _patiently(lambda: request.wfile.write(b"a"))


def bookmarks(request: Request) -> None:
    """Send bookmarks forever, ignoring the time limit of the watch."""
    if not request.is_watch:
        return request.well()
    request.begin()
    return _patiently(lambda: request.chunk(event("BOOKMARK", {"metadata": {"resourceVersion": "12"}})))


def drip_watch(request: Request) -> None:
    """Send a watch whose first line never ends."""
    if not request.is_watch:
        return request.well()
    request.begin()
    return _patiently(lambda: request.chunk(b" "))


def noise() -> bytes:
    """Return bytes that are not text."""
    return os.urandom(3000)


def _patiently(act: Callable[[], object]) -> None:
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        act()
        time.sleep(0.05)
