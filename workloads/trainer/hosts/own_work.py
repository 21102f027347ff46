"""What a host does by itself: if that does not end, it is the one that hangs, and not those that wait for it."""

import threading


class Alone:
    """Entered (`with`) around what needs no other host; several threads may be inside."""

    def __init__(self) -> None:
        self._inside = 0
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether a thread is inside."""
        return self._inside > 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
