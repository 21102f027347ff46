"""Logs of hosts, from the files of their supervisors."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from xpk.api.base import LogLine

_POLL_SECONDS = 0.05
_END_BYTES = 1 << 20  # of a log, to read at first for its last lines


def _parsed(raw: Iterable[bytes]) -> Iterator[LogLine]:
    """Join the parts of long lines of each stream; skip lines that a full disk or a crash has cut off."""
    parts: dict[bytes, list[bytes]] = {}
    for line in raw:
        with suppress(ValueError):
            stamp, stream, tag, text = line.rstrip(b"\n").split(b" ", 3)
            time_of_line = datetime.fromisoformat(stamp.decode()[:26] + "+00:00")
            parts.setdefault(stream, []).append(text)
            if tag == b"F":
                whole = b"".join(parts.pop(stream)).decode("utf-8", errors="surrogateescape")
                yield LogLine(time_of_line, whole)


def _raw(folder: Path, *, follow: bool, begin: int) -> Iterator[bytes]:
    """Yield the lines of a log; with `follow`, until its host has ended or its folder is removed."""
    path = folder / "log"
    while follow and not path.exists() and not (folder / "exit.json").exists() and folder.exists():
        time.sleep(_POLL_SECONDS)
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(begin)
        rest = b""
        while True:
            ended = not follow or (folder / "exit.json").exists() or not folder.exists()
            for line in file:  # the present size; read after the host's end, so nothing is missed
                rest += line
                if rest.endswith(b"\n"):
                    yield rest
                    rest = b""
            if ended:
                return
            time.sleep(_POLL_SECONDS)


def _find_end(path: Path, count: int) -> tuple[int, int]:
    """Return the byte from which to read the last `count` lines, and the lines to skip from there.

    A line of more than 16 KiB may lack its beginning if the other stream printed a MiB before it ended.
    """
    size, length = path.stat().st_size, _END_BYTES
    with path.open("rb") as file:
        while length < size:
            file.seek(size - length)
            begin = size - length + len(file.readline())
            number = sum(1 for _ in _parsed(file))
            if number >= count + 2:  # the first line of each stream may have begun before
                return begin, number - count
            length *= 16
        file.seek(0)
        return 0, max(0, sum(1 for _ in _parsed(file)) - count)


def read(folder: Path, *, follow: bool, since: datetime | None, tail: int | None) -> Iterator[LogLine]:
    """Yield the lines of the log in a pod's folder."""
    begin, skipped = 0, 0
    if tail is not None and (folder / "log").exists():
        begin, skipped = _find_end(folder / "log", tail)
    lines: Iterable[LogLine] = itertools.islice(_parsed(_raw(folder, follow=follow, begin=begin)), skipped, None)
    if tail is not None and not follow:
        lines = deque(lines, maxlen=tail)  # the host may have written more by now
    for line in lines:
        if since is None or line.time >= since:
            yield line
