"""Errors of buckets have the right class, exit code and a next step."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest

from e2e.bucket import BucketServer
from tests.http_server import http_server, url_of
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, UsageError, XpkError
from xpk.storage import open_folder
from xpk_shared.storage import client, open_place

SAID = "ada@example.com does not have storage.objects.list access to the bucket."


class Refusing(BaseHTTPRequestHandler):
    """Responds to every request with the status of its server."""

    status = 403
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Reject the request."""
        self.asked.append(self.path)
        body = json.dumps({"error": {"code": self.status, "message": SAID, "errors": [{"message": SAID}]}}).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing."""


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Refusing]]:
    """Yield a storage server that rejects everything."""
    with http_server(Refusing) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url_of(server))
        Refusing.asked.clear()
        yield Refusing


@pytest.fixture
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulate a machine outside Google Cloud without credentials."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setattr("google.auth.compute_engine._metadata._NO_GCE_CHECK", True)  # read at its first import


def test_a_missing_bucket_is_reported(server: BucketServer) -> None:
    with pytest.raises(NotFoundError, match="bucket 'no-such-bucket' not found") as caught:
        open_folder("gs://no-such-bucket/x").is_empty()
    assert "gcloud storage buckets create gs://no-such-bucket" in caught.value.hint


def test_a_forbidden_bucket_is_reported(refusing: type[Refusing]) -> None:
    folder = open_folder("gs://runs/x")
    for action in (folder.is_empty, lambda: folder.read("x"), lambda: folder.write("x", b""), folder.remove):
        with pytest.raises(AuthorizationError, match="permission denied") as caught:
            action()
        assert "storage.objects" in caught.value.message and "\n" not in caught.value.message


def test_a_failed_download_leaves_no_connection_to_the_garbage_collector(
    refusing: type[Refusing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusing, "status", 503)
    with pytest.raises(OSError, match="gs://runs/x"):
        open_place("gs://runs/x", retry_seconds=1.0).part(-100, 100)
    client.connect().close()
    gc.collect()  # a connection that is still open fails the test


def test_only_objects_are_requested(refusing: type[Refusing]) -> None:
    threads = set(threading.enumerate())
    for action in (lambda: open_folder("gs://runs/x").is_empty(), lambda: open_place("gs://runs/x").read()):
        with pytest.raises((AuthorizationError, PermissionError)):
            action()
    for thread in set(threading.enumerate()) - threads:
        thread.join(1)  # the client may request more in the background
    assert len(refusing.asked) == 2 and all("/o" in path for path in refusing.asked)


def test_rejected_credentials_are_reported(refusing: type[Refusing], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusing, "status", 401)
    with pytest.raises(AuthorizationError, match="not accepted"):
        open_folder("gs://runs/x").is_empty()


def test_a_failing_server_is_reported(refusing: type[Refusing], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusing, "status", 500)
    with pytest.raises(XpkError, match="cannot list gs://runs/x"):
        open_folder("gs://runs/x").is_empty()


def test_no_credentials(no_credentials: None) -> None:
    with pytest.raises(MissingToolError, match="no credentials") as caught:
        open_folder("gs://runs/x").is_empty()
    assert "gcloud auth application-default login" in caught.value.hint


def test_an_unresponsive_emulator_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(XpkError, match=r"no answer from the storage emulator at http://127\.0\.0\.1:9"):
        open_folder("gs://runs/x").is_empty()
    assert time.monotonic() - began < 8


def test_an_emulator_without_a_scheme_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9")
    with pytest.raises(UsageError, match="expected a URL"):
        open_folder("gs://runs/x").is_empty()


@pytest.mark.parametrize("missing", ["google.cloud.storage", "google.api_core", "requests"])
def test_without_the_client_the_package_is_named(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None\nfrom xpk.storage import open_folder\n"
    program += (
        "try:\n    open_folder('gs://runs/x')\nexcept Exception as error:\n    print(error.exit_code, error.hint)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "7 pip install 'xpk-multislice[gcs]'\n"


def test_a_disk_needs_no_client(tmp_path: Path) -> None:
    program = f"import sys; from xpk.storage import open_folder; open_folder({str(tmp_path)!r}).is_empty()\n"
    program += "print([name for name in sys.modules if name.startswith(('google', 'requests'))])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the output folder of a run on a disk."""
    folder = tmp_path / "root" / "run"
    (folder / "events").mkdir(parents=True)
    return folder


def test_special_files_are_rejected_without_blocking(run: Path) -> None:
    os.mkfifo(run / "metrics.jsonl")
    os.mkfifo(run / "events" / "s0-h0.jsonl")
    (run / "result.json").symlink_to("/dev/zero")
    folder = open_folder(str(run))
    for read in (
        lambda: folder.read("metrics.jsonl"),
        lambda: folder.read_end("metrics.jsonl", 9),
        lambda: folder.read_all("events"),
        lambda: folder.read("result.json"),
    ):
        with pytest.raises(XpkError, match="is not a regular file"):
            read()


def test_a_link_out_of_the_root_is_not_followed(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "s0-h0.jsonl").write_text("{}")
    (run / "events").rmdir()
    (run / "events").symlink_to(secret)
    (run / "metrics.jsonl").symlink_to(secret / "s0-h0.jsonl")
    folder = open_folder(str(run))
    for read in (lambda: folder.read("metrics.jsonl"), lambda: folder.read_all("events")):
        with pytest.raises(XpkError, match="a symbolic link leads out of"):
            read()


def test_a_file_that_is_too_large_is_rejected_immediately(run: Path) -> None:
    with (run / "metrics.jsonl").open("wb") as file:
        file.truncate(100 << 30)
    folder, began = open_folder(str(run)), time.monotonic()
    with pytest.raises(XpkError, match="too large: 102400 MiB, the limit is 512 MiB"):
        folder.read("metrics.jsonl")
    assert folder.read_end("metrics.jsonl", 4) == bytes(4), "its end can be read"
    assert time.monotonic() - began < 5
