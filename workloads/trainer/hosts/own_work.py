"""Marker for a host's own work: if it hangs, this host is at fault, not the hosts that wait for it."""

import threading


class OwnWork:
    """Context manager around work that needs no other host; several threads may be inside."""

    def __init__(self) -> None:
        self._inside = 0
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """True if a thread is inside."""
        return self._inside > 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
