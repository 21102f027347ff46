"""Signals of this process, as bytes on a socket, so that threads can wake the one that waits for them too."""

from __future__ import annotations

import contextlib
import signal
import socket

END = (signal.SIGTERM, signal.SIGINT)  # ask a host to end
_FORWARDED = (*END, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_WAKE = 0


class Signals:
    """Signals that the command is to get, and SIGCHLD. Child processes start with the usual handlers of all of them."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (*_FORWARDED, signal.SIGCHLD):
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)

    def wait(self, seconds: float) -> list[int]:
        """Return the signals to forward, once there is any signal or `wake` is called, or after so many seconds."""
        self._reader.settimeout(seconds)
        received = b""
        with contextlib.suppress(OSError):
            received = self._reader.recv(64)
        return [number for number in received if number in _FORWARDED]

    def wake(self) -> None:
        """End the current or next `wait`, from any thread."""
        with contextlib.suppress(OSError):
            self._writer.send(bytes([_WAKE]))
