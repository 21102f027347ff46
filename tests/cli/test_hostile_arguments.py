"""Files and arguments that no user means: each is refused in a line, at once, whatever it is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Xpk

DIGITS = "9" * 5000
LONG = "a" * 300
GKE = ("cluster", "create", "c", "--provider", "gke", "--project", "p", "--zone", "z-a", "--tpu-type", "v5litepod-8",
       "--num-slices", "1", "--dry-run")  # fmt: skip
CREATE = ("workload", "create", "w", "--command", "true")


def refused(xpk: Xpk, *arguments: str) -> str:
    began = time.monotonic()
    found = xpk(*arguments)
    assert time.monotonic() - began < 10
    assert found.code in (1, 2, 3) and found.err.startswith("error: ") and "  hint: " in found.err, found.err[:500]
    assert "internal error" not in found.err and len(found.err) < 10_000
    return found.err


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder of odd files."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(10 << 30)
    return tmp_path


@pytest.mark.parametrize("file", ["fifo", "device", "folder", "binary", "huge", LONG])
def test_files_that_are_none(dev: Xpk, odd: Path, file: str) -> None:
    assert "cannot read --env-file" in refused(dev, *CREATE, "--env-file", str(odd / file))
    refused(dev, *GKE, "--prices", str(odd / file))
    refused(dev, *CREATE, "--script-dir", str(odd / file)) if file != "folder" else None
    refused(dev, "workload", "create", "-f", str(odd / file))


@pytest.mark.parametrize("file", ["fifo", "device", "folder", "binary", "huge"])
def test_preferences_and_ignore_files_that_are_none(xpk: Xpk, odd: Path, file: str) -> None:
    config, code = odd / "config" / "xpk", odd / "code"
    config.mkdir(parents=True)
    code.mkdir()
    (code / "run.sh").write_text("true")
    (code / ".xpkignore").symlink_to(odd / file)
    assert ".xpkignore" in refused(xpk, *CREATE, "--script-dir", str(code), "--cluster", "none") or file
    for place in (config, config.parent):
        (place / "preferences.toml").symlink_to(odd / file)
    assert "preferences.toml" in refused(xpk, "config", "list")


@pytest.mark.parametrize(
    "arguments",
    [
        (*CREATE, "--env-file", "a\0b"),
        ("workload", "report", "w", "--file", "\ud800"),
        ("workload", "logs", "w", "--tail", "99999999999999999999999"),
        ("workload", "report", "w", "--file", LONG),
        (*GKE, "--enable-autoprovisioning", "--autoprovisioning-max-memory", DIGITS),
        (*GKE, "--enable-autoprovisioning", "--autoprovisioning-max-cpu", DIGITS),
        (*GKE, "--custom-cluster-arguments", "--a=b " * 170_000),
        ("cluster", "create", LONG, "--tpu-type", "v5litepod-8"),
        ("cluster", "delete", LONG),
        ("workload", "list", "--cluster", LONG),
        (*CREATE, "--num-slices", DIGITS),
        (*CREATE, "--max-restarts", "9" * 30),
        ("workload", "wait", "w", "--timeout", DIGITS),
    ],
)
def test_arguments_that_nobody_means(dev: Xpk, arguments: tuple[str, ...]) -> None:
    refused(dev, *arguments)
