"""Logs of hosts as files: their end, and lines that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from xpk.local import logs
from xpk.local.shim import Log


def read(folder: Path, tail: int | None = None) -> list[str]:
    return [line.text for line in logs.read(folder, follow=False, since=None, tail=tail)]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Return a folder with a log of some MiB, with long lines of two streams between each other."""
    log = Log(str(tmp_path / "log"))
    for number in range(300):
        log.add(b"stderr", b"E%d " % number + 20_000 * b"e")
        log.add(b"stdout", b"".join(b"line %d of %d\n" % (line, number) for line in range(100)))
        log.add(b"stdout", b"O%d " % number + 20_000 * b"o" + b"\n")
        log.add(b"stderr", b" end\n")
    log.end()
    return tmp_path


@pytest.mark.parametrize("tail", [0, 1, 25, 3000, 1_000_000])
def test_the_end_of_a_log_is_that_of_the_whole(large: Path, tail: int) -> None:
    whole = read(large)
    assert len(whole) == 300 * 102
    assert read(large, tail) == whole[len(whole) - tail if tail < len(whole) else 0 :]


def test_only_the_end_of_a_large_log_is_read_for_its_last_lines(large: Path) -> None:
    def read_bytes() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = read_bytes()
    assert len(read(large, 25)) == 25
    assert read_bytes() - before < (large / "log").stat().st_size / 2


def test_lines_without_a_time_are_skipped(tmp_path: Path) -> None:
    """A crash of the machine may leave zeros in a file that was being written."""
    log = Log(str(tmp_path / "log"))
    log.add(b"stdout", b"one\n")
    with (tmp_path / "log").open("ab") as file:
        file.write(bytes(100) + b" stdout F lost\n" + b"\xff stdout F lost\n")
    log.add(b"stdout", b"two\n")
    assert read(tmp_path) == read(tmp_path, 2) == ["one", "two"]
