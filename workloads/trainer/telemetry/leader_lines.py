"""Metrics of elastic slices: every slice has them, and the leading one writes them."""

import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from trainer.telemetry.metrics import JsonLines
from xpk_shared.storage import Place

_KEPT = 1000  # records that a slice keeps, in case the leading slice is lost before it has written them


class LeaderLines:
    """JSON lines of which the leading slice writes each one; a new leader first writes what the former one did not.

    A leader that was frozen does not know at once that others have gone on. In a folder it sees their lines before it
    writes the next one, and then behaves like a new leader. Several threads may write.
    """

    def __init__(self, place: Place, leads: Callable[[], bool]) -> None:
        self._place, self._leads = place, leads
        self._kept: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._lines: JsonLines | None = None
        self._size: int | None = None  # bytes of the file after this process's newest line
        self._lock = threading.Lock()

    def write(self, record: dict[str, Any], *, at_once: bool = False) -> None:
        """Keep one record and, if this slice leads, append it; with `at_once` it is written before this returns."""
        with self._lock:
            self._write(record, at_once=at_once)

    def _write(self, record: dict[str, Any], *, at_once: bool) -> None:
        self._kept.append(record)
        if not self._leads():
            self._lines = None
            return
        if self._lines is not None and self._size == self._file_size():
            self._lines.write(record, at_once=at_once)
        else:
            self._lines = JsonLines(self._place)  # only now: opening the file removes a torn last line
            written = {_key(other) for other in _records(self._place)}
            for kept in self._kept:
                if _key(kept) not in written:
                    self._lines.write(kept, at_once=at_once)
        self._size = self._file_size()

    def _file_size(self) -> int | None:
        """Return the bytes of the file; None in a bucket, where a request for every line would cost too much."""
        path = self._place.path
        return path.stat().st_size if path and path.exists() else None


def _records(place: Place) -> Iterator[dict[str, Any]]:
    content = place.read() if place.is_file() else b""
    for line in content.splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _key(record: dict[str, Any]) -> tuple[Any, bool, bool]:
    """Return what distinguishes the line of a step, of its evaluation, and of the mAP of that."""
    return record.get("step"), "loss" in record, "eval_loss" in record
