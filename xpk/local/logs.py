"""Logs of hosts, from the files of their supervisors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from xpk.api.base import LogLine

_POLL_SECONDS = 0.05


def _parsed(raw: Iterator[bytes]) -> Iterator[LogLine]:
    """Join the parts of long lines of each stream; skip lines that a full disk has cut off."""
    parts: dict[bytes, list[bytes]] = {}
    for line in raw:
        try:
            stamp, stream, tag, text = line.rstrip(b"\n").split(b" ", 3)
        except ValueError:
            continue
        parts.setdefault(stream, []).append(text)
        if tag == b"F":
            whole = b"".join(parts.pop(stream)).decode("utf-8", errors="surrogateescape")
            yield LogLine(datetime.fromisoformat(stamp.decode()[:26] + "+00:00"), whole)


def _raw(folder: Path, *, follow: bool) -> Iterator[bytes]:
    """Yield the lines of a log; with `follow`, until its host has ended or its folder is removed."""
    path = folder / "log"
    while follow and not path.exists() and not (folder / "exit.json").exists() and folder.exists():
        time.sleep(_POLL_SECONDS)
    if not path.exists():
        return
    with path.open("rb") as file:
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


def read(folder: Path, *, follow: bool, since: datetime | None, tail: int | None) -> Iterator[LogLine]:
    """Yield the lines of the log in a pod's folder."""
    start = 0
    if tail is not None and (folder / "log").exists():
        lines = deque(_parsed(_raw(folder, follow=False)), maxlen=tail)
        if not follow:
            yield from (line for line in lines if since is None or line.time >= since)
            return
        start = sum(1 for _ in _parsed(_raw(folder, follow=False))) - len(lines)
    for number, line in enumerate(_parsed(_raw(folder, follow=follow))):
        if number >= start and (since is None or line.time >= since):
            yield line
