"""Output records of a run: metrics.jsonl, events, and the log on stdout.

docs/environment.md describes their formats. A line is written completely or not at all; a full disk does not end the
run, and its lines are written once there is space.
"""

import contextlib
import dataclasses
import json
import math
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from trainer.errors import reason
from xpk_shared.storage import Place


class JsonLines:
    """Writer of JSON lines to a file; several threads may write."""

    def __init__(self, place: Place, prefix: str = "") -> None:
        """Open a file; each line begins with `prefix`."""
        self._place, self._lines, self._prefix = place, place.lines(), prefix
        self._is_warned = False
        _OPEN.add(self)

    def write(self, record: dict[str, Any], *, at_once: bool = False) -> None:
        """Append one record; with `at_once` it is written before this returns."""
        try:
            self._lines.write(f"{self._prefix}{as_json(record)}\n".encode(), at_once=at_once)
        except OSError as error:
            if not self._is_warned:
                print(f"warning: {self._place} cannot be written: {reason(error)}", file=sys.stderr, flush=True)
            self._is_warned = True

    def flush(self, seconds: float) -> None:
        """Wait until all records are written. Raises OSError if they are not after `seconds`."""
        self._lines.flush(seconds)


def as_json(value: Any, indent: int | None = None) -> str:
    """Return `value` as JSON, in which NaN and infinities become null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_replace_nonfinite(value), indent=indent)


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Flushed(Protocol):
    """A writer to flush when the process ends."""

    def flush(self, seconds: float) -> None:
        """Wait until everything is written. Raises OSError if it is not after `seconds`."""


_OPEN: "weakref.WeakSet[Flushed]" = weakref.WeakSet()


def register(lines: Flushed) -> None:
    """Register a writer with `flush`."""
    _OPEN.add(lines)


def flush(seconds: float) -> None:
    """Write every record of this process, waiting at most `seconds`."""
    deadline = time.monotonic() + seconds
    for wait in (False, True):  # start all flushes before waiting for any
        for lines in list(_OPEN):
            with contextlib.suppress(OSError):
                lines.flush(max(0.0, deadline - time.monotonic()) if wait else 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Events:
    """This host's own event file."""

    lines: JsonLines
    slice_id: int
    host: int
    attempt: int
    began: float  # time.monotonic() at the process's start
    on_event: Callable[[str, float | None, Mapping[str, Any]], None] = lambda event, seconds, details: None

    def write(
        self, event: str, step: int | None = None, seconds: float | None = None, *, at_once: bool = True, **more: Any
    ) -> None:
        """Append an event that has just ended and took `seconds`."""
        record = {"time": time.time(), "event": event, "slice": self.slice_id, "host": self.host}
        self.on_event(event, seconds, more)
        rounded = None if seconds is None else round(seconds, 4)
        self.lines.write(record | {"attempt": self.attempt, "step": step, "seconds": rounded} | more, at_once=at_once)


def losses(content: bytes) -> dict[int, float | None]:
    """Return the loss of every step in metrics.jsonl, None if not finite; of a repeated step, the last one."""
    return {record["step"]: record["loss"] for record in _step_records(content)}


def step_seconds(content: bytes) -> list[float]:
    """Return the duration of each step in metrics.jsonl, by step; of a repeated step, the last one."""
    seconds_by_step = {record["step"]: record["step_seconds"] for record in _step_records(content)}
    return [seconds_by_step[step] for step in sorted(seconds_by_step)]


def evaluation(content: bytes, step: int) -> dict[str, Any]:
    """Return all that metrics.jsonl says of the evaluation after `step`; its content may begin or end within a line."""
    known: dict[str, Any] = {}
    for line in content.splitlines():
        if b'"eval_' in line:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                known |= record if record["step"] == step else {}
    return known


def _step_records(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        with contextlib.suppress(ValueError):  # a line that a kill or a full disk cut short
            record = json.loads(line)
            if "loss" in record:
                yield record


def say(text: str) -> None:
    """Print a line on stdout, unbuffered."""
    print(text, flush=True)
