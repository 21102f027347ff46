"""The program that unpacks the user's code, run as the init container runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest

from e2e import bucket
from tests.http_server import http_server
from xpk.jobs.code.archive import Archive, pack
from xpk.model.specs import Code
from xpk.render import unpack
from xpk.storage import open_folder


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Return a program of two files."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "model.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return pack(folder)


def run(code: Code, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the program as `python3 -c` without our packages."""
    argv = [sys.executable, "-I", "-c", Path(unpack.__file__).read_text(), code.source, code.name, str(folder)]
    return subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def test_code_is_unpacked_from_a_file(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(archive.content)
    folder = tmp_path / "code"
    folder.mkdir()
    done = run(Code(name=archive.name, source=str(tmp_path / "a.tar.gz")), folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "src" / "model.py").read_text() == "x = 1\n" and os.access(folder / "run.sh", os.X_OK)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda content: content[:-20], "cannot be unpacked"),
        (lambda content: b"", "cannot be unpacked"),
        (lambda content: b"not an archive", "cannot be unpacked"),
        (None, "No such file"),
    ],
)
def test_damage_is_one_line(archive: Archive, tmp_path: Path, damage: object, says: str) -> None:
    if damage:
        (tmp_path / "a.tar.gz").write_bytes(damage(archive.content))  # type: ignore[operator]
    done = run(Code(name=archive.name, source=str(tmp_path / "a.tar.gz")), tmp_path / "code")
    assert done.returncode == 1 and says in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "code").exists()


def test_a_wrong_archive_is_rejected(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(archive.content)
    done = run(Code(name="xpk-code-0123", source=str(tmp_path / "a.tar.gz")), tmp_path / "code")
    assert done.returncode == 1 and "another one than xpk-code-0123" in done.stderr


def test_code_is_unpacked_from_a_bucket(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if bucket.missing():
        pytest.skip(bucket.missing())
    with bucket.bucket_server() as server:
        server.create_bucket("runs")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        open_folder("gs://runs/ada/.code").write("x.tar.gz", archive.content)
        code = Code(name=archive.name, source="gs://runs/ada/.code/x.tar.gz")
        assert run(code, tmp_path / "code").returncode == 0
        assert (tmp_path / "code" / "src" / "model.py").is_file()
        gone = run(Code(name=archive.name, source="gs://runs/ada/.code/y.tar.gz"), tmp_path / "none")
        assert gone.returncode == 1 and "404" in gone.stderr


class Metadata(BaseHTTPRequestHandler):
    """Google's metadata server for a new pod: not ready at first."""

    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        """Respond from the second request on."""
        self.asked.append((self.path, self.headers["Metadata-Flavor"]))
        body = json.dumps({"access_token": "secret", "expires_in": 3599}).encode()
        self.send_response(200 if len(self.asked) > 1 else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing."""


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Metadata]]:
    """Yield a metadata server."""
    with http_server(Metadata) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
        yield Metadata


def test_the_token_of_the_service_account(metadata: type[Metadata]) -> None:
    assert unpack.token() == "secret"
    path = "/computeMetadata/v1/instance/service-accounts/default/token"
    assert metadata.asked == [(path, "Google")] * 2
