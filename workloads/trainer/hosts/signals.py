"""SIGTERM and SIGINT handling that also works while the main thread is in C++.

Python runs a signal handler only between two bytecodes, so not during a long compilation. The C-level handler, however,
writes the signal's number to a wake-up socket at once, and a thread reads it there.
"""

import signal
import socket
import threading
from collections.abc import Callable

from trainer.errors import ExitCode


class Stop:
    """Stop requests of this host, and the exit code they lead to.

    Before `arm()` is called there is no work to save, so `end_now(code)` runs on the first signal; afterwards the
    hosts agree on a step: elastic slices once they have finished one, all others once they are connected. `on_first()`
    always runs on the first signal, `on_second(code)` on the second.
    """

    def __init__(
        self,
        end_now: Callable[[ExitCode], None],
        on_second: Callable[[ExitCode], None],
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        self.requested = False
        self.code = ExitCode.PREEMPTED
        self.end_now, self._on_second, self._on_first = end_now, on_second, on_first
        self.is_armed = False
        self.leaving: threading.Thread | None = None  # ends this host before it has finished a step
        self._lock = threading.Lock()

    def install(self) -> None:
        """Install the handlers of SIGTERM and SIGINT; call from the main thread."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self.reinstall()
        threading.Thread(target=self._watch, args=(reader, writer), name="signals", daemon=True).start()

    def reinstall(self) -> None:
        """Reinstall the handlers after a library has set its own; call from the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def arm(self) -> None:
        """Leave the decision to the training loop from now on."""
        with self._lock:
            self.is_armed = True

    def request(self, code: ExitCode = ExitCode.PREEMPTED) -> None:
        """Request a stop without a signal, because another host received one."""
        with self._lock:
            if not self.requested:
                self.requested, self.code = True, code
                self._on_first()
                if not self.is_armed:
                    self.end_now(code)

    def _watch(self, reader: socket.socket, writer: socket.socket) -> None:
        signals = 0
        while data := reader.recv(16):
            for number in data:
                if number in (signal.SIGTERM, signal.SIGINT):
                    signals += 1
                    code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.PREEMPTED
                    if signals == 1:
                        self.request(code)
                    else:
                        self._on_second(code)
        writer.close()
