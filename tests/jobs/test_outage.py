"""An outage of an API server, on a real socket: commands that watch a workload survive it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.api.scripted_server import kubeconfig
from xpk.api.kubernetes import KubernetesApi
from xpk.jobs.host_logs import LogQuery
from xpk.jobs.lifecycle import wait
from xpk.jobs.logs import follow_logs
from xpk.model.errors import AuthorizationError, UnavailableError
from xpk.model.status import Phase, WorkloadStatus

JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {
        "name": "demo", "namespace": "default", "uid": "u", "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {
        "replicatedJobs": [
            {"replicas": 1, "template": {"spec": {"parallelism": 1, "template": {"spec": {"containers": [{}]}}}}}
        ]
    },
}  # fmt: skip
POD = {
    "metadata": {
        "name": "demo-0", "namespace": "default", "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"jobset.sigs.k8s.io/job-index": "0", "jobset.sigs.k8s.io/jobset-uid": "u"},
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
    },
    "spec": {},
    "status": {"phase": "Running"},
}  # fmt: skip


class Server:
    """An API server with one workload. While it is `away` it responds with 503, then 403.

    Afterwards the workload has ended.
    """

    def __init__(self) -> None:
        self.away, self.requests, self.back_after = False, 0, 0
        self.ended, self.may_watch = False, True
        self.lines = [f"2026-01-01T00:00:0{second}.000000001Z line {second}" for second in range(3)]
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the method name is prescribed
                status, body = server.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return a status and a body; the outage begins with the first log that is read to its end."""
        self.requests += 1
        if self.away:
            self.back_after -= 1
            if self.back_after > 0:
                return (503 if self.back_after > 3 else 403), b"{}"  # its roles are not loaded at first
            self.away, self.ended = False, True
        if "/log?" in path:
            if not self.ended:
                self.away = True
                return 200, "\n".join(self.lines[:2]).encode() + b"\n"
            return 200, "\n".join(self.lines).encode() + b"\n"
        conditions = [{"type": "Completed", "status": "True"}] if self.ended else []
        if path.endswith("/pods/demo-0"):
            return 200, json.dumps({**POD, "status": {"phase": "Succeeded"}} if self.ended else POD).encode()
        items: list[Any] = []
        if path.endswith("/jobsets/demo"):
            return 200, json.dumps({**JOBSET, "status": {"conditions": conditions}}).encode()
        if "/jobsets" in path:
            items = [{**JOBSET, "status": {"conditions": conditions}}]
        elif "/pods" in path:
            items = [POD]
        if "watch=1" in path:
            return (200, b"") if self.may_watch else (403, b"{}")
        return 200, json.dumps({"items": items, "metadata": {"resourceVersion": "1"}}).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    """Yield a server on its own port."""
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def api(server: Server, tmp_path: Path) -> KubernetesApi:
    """Return a client that does not pause."""
    return KubernetesApi(
        kubeconfig=kubeconfig(tmp_path, f"http://127.0.0.1:{server.http.server_address[1]}"), pause=lambda seconds: None
    )


def test_followed_logs_survive_an_outage_without_duplicates(server: Server, api: KubernetesApi) -> None:
    server.back_after = 16
    message = [line.text for line in follow_logs(api, "demo", "default", LogQuery())]
    assert message == ["line 0", "line 1", "line 2"]


@pytest.mark.parametrize("answers", [16, 3], ids=["from-its-end", "from-when-it-knows-no-rules-yet"])
def test_wait_survives_an_outage(server: Server, api: KubernetesApi, answers: int) -> None:
    def begin(status: WorkloadStatus) -> None:
        server.away = not server.ended

    server.back_after = answers
    assert wait(api, "demo", "default", timeout=60, tell=begin).phase is Phase.SUCCEEDED


def test_missing_permission_is_reported_immediately(server: Server, api: KubernetesApi) -> None:
    server.away, server.back_after = True, 3
    with pytest.raises(AuthorizationError):
        wait(api, "demo", "default", timeout=60)


def test_missing_permission_to_watch_is_reported(server: Server, api: KubernetesApi) -> None:
    server.may_watch = False
    with pytest.raises(AuthorizationError):
        wait(api, "demo", "default", timeout=60)


def test_a_single_request_does_not_retry_for_long(server: Server, api: KubernetesApi) -> None:
    server.away, server.back_after = True, 10_000
    with pytest.raises(UnavailableError):
        api.list("JobSet")
    assert server.requests < 10
