"""Signals of this process as bytes on a socket, to which threads can also write to wake the waiting thread."""

from __future__ import annotations

import contextlib
import signal
import socket

END = (signal.SIGTERM, signal.SIGINT)  # ask a host to end
_FORWARDED = (*END, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_WAKE = 0


class Signals:
    """Signals to forward to the command, and SIGCHLD. Child processes start with the default handlers."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (*_FORWARDED, signal.SIGCHLD):
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)

    def wait(self, seconds: float) -> list[int]:
        """Return the signals to forward, after any signal, a call of `wake`, or this many seconds."""
        self._reader.settimeout(seconds)
        received = b""
        with contextlib.suppress(OSError):
            received = self._reader.recv(64)
        return [number for number in received if number in _FORWARDED]

    def wake(self) -> None:
        """End the current or next `wait`, from any thread."""
        with contextlib.suppress(OSError):
            self._writer.send(bytes([_WAKE]))
