"""Background threads: saves, one after the other, and reads whose result is needed later."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


class Background:
    """Thread for at most one save at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def begin(self, action: Callable[[], None]) -> None:
        """Start an action, after `wait`."""
        self._thread = threading.Thread(target=action, name=self._name, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the action in progress."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def join(self, seconds: float) -> bool:
        """Wait up to this many seconds for the action in progress; return whether it has ended."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()


def start(action: Callable[[], _T], name: str) -> Callable[[], _T]:
    """Start an action on a thread; the returned function waits for it, and returns its result or raises its error."""
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(action())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome.result
