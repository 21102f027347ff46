"""Agreement of all hosts on the step after which they stop.

A host that is asked to stop asks process 0, which tells all hosts to hold: they start no further step and report the
last one that they have started. Process 0 announces the largest. All hosts go on to that step, because a step needs all
of them, and stop after it. The agreement takes four messages, regardless of the time of a step.

If a host has not started a step yet, no host can have finished one: all end at once, and do not wait for its set-up.
"""

import threading
from collections.abc import Callable
from typing import Any

from trainer.hosts.peers import Peers

_KEY = "stop"
_ASK = "ask"  # a host's report that it was asked to stop
_HOLD = "hold"  # process 0's announcement; the next one is the step


class StopStep:
    """One host's part in the agreement.

    `on_nothing_finished()` is called on a background thread if all hosts agree to stop before any has finished a step;
    the training loop then does not go on.
    """

    def __init__(self, peers: Peers, on_nothing_finished: Callable[[], None]) -> None:
        """Prepare; call this before the peers connect."""
        self._peers, self._on_nothing_finished = peers, on_nothing_finished
        self._changed = threading.Condition()
        self._started: int | None = None  # newest step that this host has started
        self._is_held = False
        self._last: int | None = None  # the agreed step
        self._is_asked = False  # on process 0: some host was asked to stop
        self._reported: dict[int, int | None] = {}  # on process 0: newest steps by host
        peers.handle(_KEY, self._on_report, self._on_announced)

    def request(self) -> None:
        """Ask all hosts to stop; returns without waiting for them."""
        self._peers.report(_KEY, _ASK)

    def try_start(self, step: int) -> bool:
        """Record that this host starts a step; return False instead if all stop before it. Waits for an agreement."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_held)
            if self._last is not None and step > self._last:
                return False
            self._started = step
            return True

    def _on_report(self, host: int, value: Any) -> None:
        """Take a request, or a host's newest step; on process 0."""
        if value == _ASK:
            with self._changed:
                was_asked, self._is_asked = self._is_asked, True
            if not was_asked:
                self._peers.announce(_KEY, _HOLD)
            return
        with self._changed:
            self._reported[host] = value
            if len(self._reported) < self._peers.processes:
                return
        steps = [step for step in self._reported.values() if step is not None]
        self._peers.announce(_KEY, max(steps) if len(steps) == self._peers.processes else None)

    def _on_announced(self, value: Any) -> None:
        if value == _HOLD:
            with self._changed:
                self._is_held = True
            self._peers.report(_KEY, self._started)
        elif value is None:
            self._on_nothing_finished()
        else:
            with self._changed:
                self._last, self._is_held = int(value), False
                self._changed.notify_all()
