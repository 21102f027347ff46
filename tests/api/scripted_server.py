"""An HTTP server with scripted responses of broken API servers and proxies."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from tests.http_server import http_server, url_of

Answer = tuple[int, Any]  # status, and text or a value to send as JSON


@dataclass(frozen=True)
class Slow:
    """A response that begins immediately and continues after some seconds."""

    seconds: float


class Script:
    """Responses by method and path, in order; the last one is repeated.

    `None` closes the connection without a response.
    """

    def __init__(self, answers: dict[str, list[Answer | None]]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.queries: list[str] = []

    def next(self, method: str, path: str) -> Answer | None:
        self.asked.append(f"{method} {path}")
        result = self.answers.get(f"{method} {path}") or self.answers.get("*")
        if not result:
            return 404, {"kind": "Status", "message": "the server could not find the requested resource"}
        return result.pop(0) if len(result) > 1 else result[0]


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """Serve on a local port; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, _, query = self.path.partition("?")
            script.queries.append(query)
            result = script.next(self.command, path)
            if result is None:
                self.connection.close()
                return
            status, body = result
            slow, body = (body.seconds, "\n") if isinstance(body, Slow) else (0.0, body)
            content = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if isinstance(body, str) else "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            time.sleep(slow)
            with suppress(BrokenPipeError):
                self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            """Do nothing."""

    with http_server(Handler) as server:
        yield url_of(server)


def kubeconfig(folder: Path, server: str, **user: Any) -> Path:
    """Unreachable, wrong and interrupted API servers, and invalid kubeconfigs."""
    file = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file.write_text(yaml.safe_dump(config))
    return file
