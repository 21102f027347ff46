"""Appending lines to a bucket object, by composition.

A thread collects lines, uploads them as a part, has the bucket compose [object, part] and removes the part. If the
outcome of a composition is unknown, the part is removed first, so that the composition can no longer succeed; then the
end of the object shows the outcome. No line is lost or duplicated while the bucket is unreachable, and no caller waits.
The lines of the last seconds exist only in this process and are lost with it.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
import time

from xpk_shared.storage.bucket_objects import Objects
from xpk_shared.storage.errors import Unreachable
from xpk_shared.storage.place import Entry

EVERY_SECONDS = 3.0  # between writes, except of lines `at_once`
_MIN_INTERVAL_SECONDS = 1.0  # between writes to one object: a limit of Google Cloud Storage
_MAX_PAUSE_SECONDS = 15.0  # seconds between retries
_PERMANENT = (FileNotFoundError, PermissionError)


class BucketLines:
    """An object of lines; several threads may write."""

    def __init__(self, place: Objects) -> None:
        self._place = place
        self._parts = place.append_suffix(".parts")
        self._changed = threading.Condition()
        self._pending: list[bytes] = []
        self._is_urgent = False
        self._batch = b""  # the batch being written
        self._size_before: int | None = None  # of the object, before the first attempt to write the batch
        self._known: Entry | None = None  # the object as this writer left it
        self._error: OSError | None = None
        self._flushing = 0  # threads in `flush`, which raises errors
        threading.Thread(target=self._run, name="append", daemon=True).start()

    def write(self, line: bytes, *, at_once: bool = False) -> None:
        """Buffer a line until the thread writes it."""
        with self._changed:
            self._pending.append(line)
            self._is_urgent |= at_once
            self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until all lines are in the object; raise the last error if it is permanent, or at the timeout."""

        def is_done() -> bool:
            return not (self._pending or self._batch) or isinstance(self._error, _PERMANENT)

        with self._changed:
            self._is_urgent = True
            self._flushing += 1
            self._changed.notify_all()
            self._changed.wait_for(is_done, seconds)
            self._flushing -= 1
            if self._pending or self._batch:
                raise self._error or Unreachable(110, "the bucket does not answer", str(self._place))

    def _run(self) -> None:
        """Write lines until the process ends."""
        with contextlib.suppress(OSError):  # parts of a killed process; its lines are in the object or lost
            self._parts.remove_each(self._parts.sums())
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending)
                self._changed.wait_for(lambda: self._is_urgent, EVERY_SECONDS)
                self._batch, self._is_urgent = b"".join(self._pending), False
                self._pending.clear()
            self._write_batch()
            with self._changed:
                self._batch, self._size_before, self._error = b"", None, None
                self._changed.notify_all()
            time.sleep(_MIN_INTERVAL_SECONDS)

    def _write_batch(self) -> None:
        """Retry until the batch is written."""
        pause = 1.0
        while True:
            try:
                self._write_once()
                return
            except OSError as error:
                is_reported = self._error is not None or isinstance(error, FileExistsError)
                if not is_reported and not (self._flushing and isinstance(error, _PERMANENT)):
                    cause = f"{error.strerror or error}; retrying"
                    print(f"warning: {self._place} cannot be written: {cause}", file=sys.stderr, flush=True)
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _write_once(self) -> None:
        if self._size_before is not None:
            self._parts.remove_each(self._parts.sums())
            self._known = self._place.look()
            if self._is_written():
                return
        elif self._known is None:
            self._known = self._place.look()
        self._size_before = self._known.size if self._known else 0
        if self._known is None:
            self._place.create(self._batch, 0)
            self._known = self._place.look()
            return
        part = self._parts / secrets.token_hex(8)
        part.create(self._batch, None)
        self._known = self._place.append(part, self._known)
        with contextlib.suppress(OSError):
            part.remove()

    def _is_written(self) -> bool:
        """Return whether the batch is in the object; its write must not be in progress."""
        start = self._size_before or 0
        if self._known is None or self._known.size <= start:
            return False
        return self._batch in self._place.part(start, self._known.size - start)
