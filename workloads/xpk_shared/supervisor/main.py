"""Main loop: from the start of the command to this host's exit code."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xpk_shared.supervisor.command import Command
from xpk_shared.supervisor.host import Host, read_host, say
from xpk_shared.supervisor.peers import Peers
from xpk_shared.supervisor.signals import END, Signals

_FAILED, _PEER_LOST, _NOT_STARTED, _ASKED_TO_END = 1, 75, 127, 143
_END_SECONDS, _POLL_SECONDS, _IDLE_SECONDS = 60.0, 0.2, 60.0


@dataclass(frozen=True)
class Limits:
    """Time limits of a supervisor in seconds."""

    calm_seconds: float = 1.0  # from SIGTERM to SIGKILL after a loss, and for word of another host that was asked
    meet_seconds: float = 10.0  # for which a host that has failed at once waits to be known to those it fails


class Supervisor:
    """Supervisor of one command, until it has ended and nobody waits for anything."""

    def __init__(self, host: Host, command: Command, peers: Peers, signals: Signals, limits: Limits) -> None:
        self._host, self._command, self._peers, self._signals = host, command, peers, signals
        self._limits = limits
        self._asked = False
        self._began, self._lost_at = time.monotonic(), 0.0

    def run(self) -> int:
        """Return this host's exit code."""
        while True:
            waits = self._asked or self._lost_at or self._command.code is not None
            for number in self._signals.wait(_POLL_SECONDS if waits else _IDLE_SECONDS):
                self._forward(number)
            self._command.reap()
            self._end_for_loss()
            code = self._exit_code()
            if code is not None:
                return code

    def _forward(self, number: int) -> None:
        """Forward a signal to the command; the other hosts learn of one to end first."""
        if number in END and not self._asked:
            self._asked = True
            self._peers.leave(asked=True)
        self._command.forward(number)

    def _end_for_loss(self) -> None:
        """End the command if another host is lost."""
        if self._peers.lost and not self._asked and not self._lost_at and self._command.code is None:
            say(f"host {self._host.name(self._peers.lost[0])} is gone: this host's command is ended")
            self._command.forward(signal.SIGTERM)
            self._lost_at = time.monotonic()
        if self._lost_at and time.monotonic() > self._lost_at + self._limits.calm_seconds:
            self._command.signal_all(signal.SIGKILL)

    def _exit_code(self) -> int | None:
        """Return the exit code that this host can end with now, None if it has to wait."""
        code, now = self._command.code, time.monotonic()
        if code == 0:
            self._peers.leave()
        elif code is not None and self._lost_at:
            timeout = _PEER_LOST if now > self._lost_at + _END_SECONDS else None
            return _ASKED_TO_END if self._asked else timeout
        elif code is not None and self._asked:
            return None if self._command.is_saving else code
        elif code is not None:
            has_waited = self._peers.have_met or now > self._began + self._limits.meet_seconds
            return self._own_code(code) if has_waited else None
        return code

    def _own_code(self, code: int) -> int:
        """Return the exit code of a host that nobody asked to end: 143 would not be counted as a failure."""
        # Word that another host was asked may be on its way.
        if code == _ASKED_TO_END and not self._peers.asked.wait(self._limits.calm_seconds):
            say(f"the command ended with {code}, but no host was asked to end: exit code {_FAILED}")
            return _FAILED
        return code


def main(
    argv: list[str],
    environ: Mapping[str, str] = os.environ,
    *,
    limits: Limits = Limits(),
    open_peers: Callable[[Host, bytes, Callable[[], None]], Peers] = Peers,
) -> int:
    """Run a command as one host of several. Returns its exit code."""
    host = read_host(environ)
    if host is None:
        os.execvp(argv[0], argv)  # nothing says who the other hosts are
    signals = Signals()
    try:
        command = Command(argv)
    except OSError as error:
        say(f"cannot run {argv[0]}: {error.strerror}")
        return _NOT_STARTED
    peers = open_peers(host, host.read_secret(), signals.wake)
    peers.connect()
    return Supervisor(host, command, peers, signals, limits).run()
