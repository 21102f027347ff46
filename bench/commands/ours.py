"""xpk's commands on the benchmark's API server, with a kubelet that serves logs."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from bench.commands import process
from bench.commands.cluster import NAME, BenchCluster
from e2e.counting import counting
from tests.http_server import http_server

_LINES = 100
_LOG = "".join(f"2026-11-01T08:00:{index % 60:02}.000000000Z step {index}\n" for index in range(_LINES)).encode()


class Ours:
    """xpk as a user runs it: its bytecode is compiled, and its state has one cluster, the API server's."""

    def __init__(self, folder: Path, cluster: BenchCluster) -> None:
        self._folder, self._cluster = folder, cluster
        kept = {name: value for name, value in os.environ.items() if not name.startswith("XPK_")}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        self._environ = {**kept, "XPK_CONFIG_DIR": str(folder / "config")}
        self._place(folder / "state", cluster.kubeconfig)

    def run(self, arguments: Sequence[str]) -> process.Sample:
        """Run a command and measure it."""
        return process.run(_argv(arguments), {**self._environ, "XPK_STATE_DIR": str(self._folder / "state")})

    def count(self, arguments: Sequence[str]) -> tuple[int, int]:
        """Run a command; return the numbers of child processes and of requests to the API server."""
        hook = self._folder / "hook"
        hook.mkdir(exist_ok=True)
        state = self._folder / "counted"
        with counting(self._cluster.kubeconfig, self._folder / "proxy") as counter:
            self._place(state, counter.kubeconfig)
            processes = process.count_processes(_argv(arguments), {**self._environ, "XPK_STATE_DIR": str(state)}, hook)
            return processes, len(counter.requests) + counter.pages

    def _place(self, state: Path, kubeconfig: Path) -> None:
        """Make the API server a cluster that this state knows."""
        folder = state / "kind" / NAME
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kubeconfig").write_text(kubeconfig.read_text(encoding="utf-8"), encoding="utf-8")


@contextmanager
def kubelet(cluster: BenchCluster, nodes: Sequence[str]) -> Iterator[None]:
    """Serve a log of 100 lines for every container of the nodes."""
    certificates = cluster.kubeconfig.parent / "certificates"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(_LOG)))
            self.end_headers()
            self.wfile.write(_LOG)

        def log_message(self, format: str, *args: object) -> None:
            """Do nothing."""

    with http_server(Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_port}},
        }
        for name in nodes:
            cluster.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status})
        yield
        for name in nodes:
            cluster.api.delete("Node", name)


def python_and_click() -> process.Sample:
    """Measure a Python that imports click and nothing else."""
    return process.run([sys.executable, "-c", "import click"], os.environ)


def _argv(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "xpk", *arguments]
