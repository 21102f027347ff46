"""The guard works in the process of the tests, in child processes, and in gRPC, whose sockets Python does not see."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.harness import Lab
from tests.offline.guard import take_refused

FETCH = "import urllib.request; urllib.request.urlopen('https://storage.googleapis.com/bucket', timeout=5)"


@pytest.mark.parametrize(
    "host",
    ["container.googleapis.com", "metadata.google.internal.", "169.254.169.254", "8.8.8.8", "2001:4860:4860::8888"],
)
def test_python_in_this_process(host: str) -> None:
    # Not by class: child processes of a test have a second copy of the module.
    with pytest.raises(RuntimeError, match=f"no test may talk to {host}"):
        socket.create_connection((host, 443), timeout=5)
    assert [line.rpartition(": ")[2] for line in take_refused()] == [host]


def test_loopback_connections_are_allowed() -> None:
    with socket.create_server(("localhost", 0)) as server:
        socket.create_connection(server.getsockname()[:2], timeout=5).close()
    assert take_refused() == []


def test_a_swallowed_connection_error_fails_the_test() -> None:
    # A process of its own: google.auth reads only at import whether it may look for Compute Engine.
    look = "import contextlib, google.auth\nwith contextlib.suppress(Exception): google.auth.default()"
    env = {key: value for key, value in os.environ.items() if key != "NO_GCE_CHECK"}
    assert subprocess.run([sys.executable, "-c", look], env=env, capture_output=True, check=False).returncode == 0
    assert any("169.254.169.254" in line for line in take_refused())


def test_child_processes_are_guarded() -> None:
    again = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {FETCH!r}]))"
    for program in (FETCH, again):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode and "no test may talk to storage.googleapis.com" in done.stderr
        assert take_refused() == ["-c: storage.googleapis.com"]


def test_the_environment_of_drills_keeps_the_guard(tmp_path: Path) -> None:
    lab = Lab(folder=tmp_path, cluster="c", say=print)
    done = subprocess.run([sys.executable, "-c", FETCH], env=lab.environ, capture_output=True, text=True, check=False)
    assert "no test may talk to storage.googleapis.com" in done.stderr
    assert len(take_refused()) == 1


def test_grpc() -> None:
    import grpc

    with grpc.secure_channel("container.googleapis.com:443", grpc.ssl_channel_credentials()) as channel:
        call = channel.unary_unary("/google.container.v1.ClusterManager/ListClusters")
        with pytest.raises(grpc.RpcError, match="HTTP proxy returned response code 403"):
            call(b"", timeout=10)
    assert set(take_refused()) == {"gRPC: container.googleapis.com:443"}


def test_the_program_itself(tmp_path: Path) -> None:
    key = tmp_path / "credentials.json"
    secrets = {"client_id": "i", "client_secret": "none", "refresh_token": "none"}
    key.write_text(json.dumps({"type": "authorized_user", **secrets}))
    ours = {"XPK_STATE_DIR": str(tmp_path), "XPK_CONFIG_DIR": str(tmp_path), "XPK_GKE_POLL_SECONDS": "0.05"}
    argv = [sys.executable, "-m", "xpk", "cluster", "list", "--provider", "gke", "--project", "p"]
    env = {**os.environ, **ours, "GOOGLE_APPLICATION_CREDENTIALS": str(key)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1 and "unexpected response from Google Cloud (UNAVAILABLE)" in done.stderr
    assert set(take_refused()) == {"gRPC: container.googleapis.com:443"}
