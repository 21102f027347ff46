"""What a host writes while it computes on: one save after the other, on a thread."""

import threading
from collections.abc import Callable


class Background:
    """Where one save is under way at most."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def begin(self, act: Callable[[], None]) -> None:
        """Begin what is to be done, after `wait`."""
        self._thread = threading.Thread(target=act, name=self._name, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for what is under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def ended(self, seconds: float) -> bool:
        """Wait so long for what is under way; return whether there is nothing any more."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()
