"""Report the progress of a program to xpk: `xpk_run.log(step=10, steps=1000, loss=0.25)`.

Each call appends a line of JSON to the file that XPK_PROGRESS_FILE names; `xpk workload status` and `report` show it
(docs/how-to/show-progress.md). In a shell: `python3 -m xpk_run step=10 steps=1000 loss=0.25`.

No call raises an error. What cannot be recorded is left out, and reported once on stderr. The module is this one file.
It needs only the standard library of Python 3.8, and may be used by several threads and by forked processes.
"""

from __future__ import annotations

import atexit
import json
import math
import operator
import os
import sys
import threading
import time
from typing import Any

_PATH, _ATTEMPT, _STARTED = "XPK_PROGRESS_FILE", "XPK_RESTART_ATTEMPT", "XPK_ATTEMPT_STARTED"
_IMPORTED_AT = time.time()
_MAX_NUMBERS, _MAX_NAME = 64, 100  # of a line; characters of a name
_MAX_BUFFER = 64 * 1024  # bytes
_SLOW_SECONDS, _SLOW_WRITES, _SHARE, _MAX_WAIT_SECONDS, _RETRY_SECONDS = 0.001, 3, 0.01, 2.0, 1.0


def log(step: object = None, **numbers: object) -> None:
    """Record a finished step, with any numbers of it.

    `steps`: number of steps of the whole run; `loss`, `eval_loss`; `tokens` or `examples`: those of one step of all
    hosts; `step_seconds`: duration of the step, if it is not the time since the call before; `resumed_step`: the step
    of the checkpoint from which the program resumes. Other names are shown as charts.

    Numbers of arrays and tensors are read, which waits for their device. On other hosts than slice 0 host 0, and in
    processes whose RANK is not 0, the call does nothing.
    """
    try:
        _file.write(step, numbers)
    except Exception as error:
        _warn(f"progress is not recorded: {error!r}")


def flush() -> None:
    """Write what is buffered. Only needed before os._exit, which skips what Python does at the end of a process."""
    try:
        _file.flush()
    except Exception as error:
        _warn(f"progress is not recorded: {error!r}")


def main(arguments: list[str]) -> int:
    """Record `name=number` arguments; return 2 if they are something else."""
    pairs = [argument.partition("=") for argument in arguments]
    if not pairs or not all(name.isidentifier() and value for name, _, value in pairs):
        print("usage: python3 -m xpk_run step=NUMBER [steps=NUMBER] [loss=NUMBER] [NAME=NUMBER]...", file=sys.stderr)
        return 2
    numbers: dict[str, object] = {name: value for name, _, value in pairs}
    log(numbers.pop("step", None), **numbers)
    return 0


class _File:
    """The file of progress. A write is one system call with whole lines, so that lines of writers do not mix.

    Lines are only buffered while writes take more than a millisecond, as on a network's file system: for up to two
    seconds, such that a hundredth of the time is spent on writes.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may interrupt a call
        self._path, self._fd, self._buffer, self._has_begun = "", -1, b"", False
        self._next, self._slow_writes = 0.0, 0  # time of the next write; slow ones in a row

    def write(self, step: object, numbers: dict[str, object]) -> None:
        path = os.environ.get(_PATH, "")
        if not path:
            _warn(f"{_PATH} is not set; progress is not recorded")
            return
        if path == os.devnull or os.environ.get("RANK", "0") not in ("", "0"):
            return
        record = _record(step, numbers)
        with self._lock:
            if not self._has_begun:
                record["started"] = _started()
                self._has_begun = True
            self._buffer += json.dumps(record).encode() + b"\n"
            if time.monotonic() >= self._next or len(self._buffer) > _MAX_BUFFER:
                self._flush(path)

    def flush(self) -> None:
        with self._lock:
            if self._buffer:
                self._flush(self._path)

    def after_fork(self) -> None:
        """Forget what the parent process will write, and its lock, which another thread of it may hold."""
        self._lock, self._buffer = threading.RLock(), b""

    def _flush(self, path: str) -> None:
        began, buffer = time.monotonic(), self._buffer
        self._buffer = b""
        try:
            if self._fd < 0 or path != self._path:
                self._open(path)
            if os.write(self._fd, buffer) < len(buffer):
                raise OSError("the disk is full")
        except OSError as error:
            self._next = began + _RETRY_SECONDS
            self._close()  # so that the incomplete line is ended before the next one
            _warn(f"progress is not recorded: {error}")
            return
        seconds = time.monotonic() - began
        self._slow_writes = self._slow_writes + 1 if seconds > _SLOW_SECONDS else 0
        if self._slow_writes >= _SLOW_WRITES:
            self._next = began + min(_MAX_WAIT_SECONDS, seconds / _SHARE)

    def _open(self, path: str) -> None:
        """Open the file; a line that a killed process has left incomplete is ended."""
        self._close()
        self._path = path
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _record(step: object, numbers: dict[str, object]) -> dict[str, Any]:
    """Return the line of a call. Numbers that are not finite are null."""
    record: dict[str, Any] = {"time": round(time.time(), 4)}
    attempt = os.environ.get(_ATTEMPT, "")
    if attempt.isdigit():
        record["attempt"] = int(attempt)
    if step is not None:
        _add(record, "step", step)
    for name, value in list(numbers.items())[:_MAX_NUMBERS]:
        if value is not None:
            _add(record, name[:_MAX_NAME], value)
    return record


def _add(record: dict[str, Any], name: str, value: Any) -> None:
    kind = type(value)
    try:
        if kind is not int and kind is not float:
            value = _number(value)
        record[name] = value if math.isfinite(value) else None
    except Exception:
        _warn(f"{name} is not recorded: it is not a number but {kind.__name__}")


def _number(value: Any) -> float:
    """Return the value of a number, or of an array, a tensor or a text with one number."""
    if isinstance(value, str):
        return int(value) if value.lstrip("+-").isdigit() else float(value)
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def _started() -> float:
    """Return when the command of this attempt was started, in Unix seconds."""
    try:
        return float(os.environ[_STARTED])
    except (KeyError, ValueError):
        return round(_IMPORTED_AT, 4)


_warned: set[str] = set()


def _warn(text: str) -> None:
    """Print each kind of message once."""
    kind = text.partition(":")[0]
    if kind in _warned:
        return
    _warned.add(kind)
    try:
        os.write(2, f"xpk_run: {text}\n".encode(errors="backslashreplace"))
    except OSError:
        return  # nobody reads it


_file = _File()
atexit.register(flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_file.after_fork)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
