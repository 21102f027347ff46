"""Lines appended to an object, which cannot be appended to.

A thread collects lines, uploads them as a part, has the bucket compose [object, part] and removes the part.
Where it is not known whether composing worked, the part is removed first, so that it cannot work any more,
and then the end of the object tells. So no line is lost or doubled however long the bucket is away, and
nobody waits for it. The lines of the last seconds live in this process alone and die with it.
"""

import contextlib
import secrets
import sys
import threading
import time
from typing import TYPE_CHECKING

from trainer.errors import Unreachable, reason

if TYPE_CHECKING:
    from trainer.storage.base import Entry
    from trainer.storage.gcs import Bucket

EVERY_SECONDS = 3.0  # between writes, unless a line has to be there at once
_LEAST_SECONDS = 1.0  # between writes to one object: a limit of Google Cloud Storage
_LONGEST_PAUSE = 15.0  # seconds before the next try
_INCURABLE = (FileNotFoundError, PermissionError)


class BucketLines:
    """An object of lines; several threads may write."""

    def __init__(self, place: "Bucket") -> None:
        self._place = place
        self._parts = place.beside(".parts")
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._urgent = False
        self._batch = b""  # being written
        self._size_before: int | None = None  # of the object, before the first try to write the batch
        self._known: Entry | None = None  # the object as this writer left it
        self._error: OSError | None = None
        self._flushing = 0  # threads that are told of an error by `flush`
        threading.Thread(target=self._work, name="append", daemon=True).start()

    def write(self, line: bytes, *, at_once: bool = False) -> None:
        """Keep a line until the thread writes it."""
        with self._changed:
            self._waiting.append(line)
            self._urgent |= at_once
            self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until all lines are in the object; raise what keeps them out if no retry cures it, or in the end."""

        def over() -> bool:
            return not (self._waiting or self._batch) or isinstance(self._error, _INCURABLE)

        with self._changed:
            self._urgent = True
            self._flushing += 1
            self._changed.notify_all()
            self._changed.wait_for(over, seconds)
            self._flushing -= 1
            if self._waiting or self._batch:
                raise self._error or Unreachable(110, "the bucket does not answer", str(self._place))

    def _work(self) -> None:
        """Write lines for as long as the process lives."""
        with contextlib.suppress(OSError):  # left by a killed process; its lines are in the object or lost
            self._parts.remove_each(self._parts.sums())
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                self._changed.wait_for(lambda: self._urgent, EVERY_SECONDS)
                self._batch, self._urgent = b"".join(self._waiting), False
                self._waiting.clear()
            self._write_batch()
            with self._changed:
                self._batch, self._size_before, self._error = b"", None, None
                self._changed.notify_all()
            time.sleep(_LEAST_SECONDS)

    def _write_batch(self) -> None:
        """Try until it works."""
        pause = 1.0
        while True:
            try:
                self._try()
                return
            except OSError as error:
                said = self._error is not None or isinstance(error, FileExistsError)
                if not said and not (self._flushing and isinstance(error, _INCURABLE)):
                    told = f"{self._place} cannot be written: {reason(error)}; its lines are kept until it can"
                    print(f"warning: {told}", file=sys.stderr, flush=True)
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _try(self) -> None:
        if self._size_before is not None:
            self._parts.remove_each(self._parts.sums())
            self._known = self._look()
            if self._landed():
                return
        elif self._known is None:
            self._known = self._look()
        self._size_before = self._known.size if self._known else 0
        if self._known is None:
            self._place.create(self._batch, 0)
            self._known = self._look()
            return
        part = self._parts / secrets.token_hex(8)
        part.write(self._batch)
        self._known = self._place.append(part, self._known)
        with contextlib.suppress(OSError):
            part.remove()

    def _look(self) -> "Entry | None":
        with contextlib.suppress(FileNotFoundError):
            return self._place.entry()
        return None

    def _landed(self) -> bool:
        """Whether the batch is in the object, of which nothing may be under way any more."""
        before = self._size_before or 0
        if self._known is None or self._known.size <= before:
            return False
        return self._batch in self._place.part(before, self._known.size - before)
