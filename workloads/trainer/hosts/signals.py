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

    Until `arm()` is called nothing can be lost, so `at_once(code)` runs on the first signal; after it the training loop
    checks `requested`. `again(code)` runs on the second signal in any case, and `asked()` on the first.
    """

    def __init__(
        self,
        at_once: Callable[[ExitCode], None],
        again: Callable[[ExitCode], None],
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        self.requested = False
        self.code = ExitCode.PREEMPTED
        self._at_once, self._again, self._asked = at_once, again, asked
        self._armed = False
        self._lock = threading.Lock()

    def install(self) -> None:
        """Install the handlers of SIGTERM and SIGINT; call from the main thread."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self.claim()
        threading.Thread(target=self._watch, args=(reader, writer), name="signals", daemon=True).start()

    def claim(self) -> None:
        """Reinstall the handlers after a library has set its own; call from the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def arm(self) -> None:
        """Declare that a checkpoint must save the work before a stop."""
        with self._lock:
            self._armed = True

    def request(self, code: ExitCode = ExitCode.PREEMPTED) -> None:
        """Request a stop without a signal, as another host got one."""
        with self._lock:
            if not self.requested:
                self.requested, self.code = True, code
                self._asked()
                if not self._armed:
                    self._at_once(code)

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
                        self._again(code)
        writer.close()
