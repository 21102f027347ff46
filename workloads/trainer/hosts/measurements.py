"""Durations that this run has measured, from which time limits and checkpoint intervals follow."""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

STEP, EVALUATION, JOIN, CHIPS, RECOVERY = "step", "evaluation", "join", "chips", "recovery"
SAVE, LOCAL_SAVE = "save", "local_save"  # from the start to the commit; with BLOCKED: seconds that steps waited
BLOCKED = "_blocked"
_KEPT = {STEP: 200}  # newest durations; of the others:
_KEPT_OTHERS = 20


def compilation(program: str) -> str:
    """Return the kind of the compilations of a program."""
    return f"compile/{program}"


def restoration(source: str) -> str:
    """Return the kind of the restores from a tier, local or checkpoint."""
    return f"restore/{source}"


class Measurements:
    """The newest durations of each kind in seconds, of this attempt and of earlier ones; threads may share them."""

    def __init__(self, former: Mapping[str, Iterable[float]] | None = None) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._seconds: dict[str, deque[float]] = {}
        self._own: dict[str, int] = {}
        self.trusts_former = True  # False after a hang: this attempt has the fixed limits
        self.adopt(former or {})

    def adopt(self, former: Mapping[str, Iterable[float]]) -> None:
        """Put the durations of earlier attempts before those of this one."""
        with self._lock:
            for kind, values in former.items():
                own = self._seconds.get(kind, ())
                self._seconds[kind] = deque([*map(float, values), *own], maxlen=_KEPT.get(kind, _KEPT_OTHERS))

    def record(self, kind: str, seconds: float) -> None:
        """Record a duration."""
        with self._lock:
            kept = self._seconds.setdefault(kind, deque(maxlen=_KEPT.get(kind, _KEPT_OTHERS)))
            kept.append(seconds)
            self._own[kind] = self._own.get(kind, 0) + 1

    def record_step(self, seconds: float) -> None:
        """Record the duration of a step; before the first one, the attempt recovered or began."""
        if not self.own(STEP):
            self.record(RECOVERY, time.monotonic() - self._began)
        self.record(STEP, seconds)

    def take_event(self, event: str, seconds: float | None, details: Mapping[str, Any]) -> None:
        """Record the duration of an event: a save, a restore, or a compilation that was not cached."""
        if seconds is None:
            return
        if event in (SAVE, LOCAL_SAVE):
            self.record(event, seconds)
            self.record(event + BLOCKED, float(details.get("blocked", 0.0)))
        elif event == "compile" and not details.get("cached") and "program" in details:
            self.record(compilation(str(details["program"])), seconds)
        elif event == "restore" and details.get("source") != "init":
            self.record(restoration(str(details.get("source"))), seconds)

    def own(self, kind: str) -> int:
        """Return how many durations of this kind this attempt has recorded."""
        return self._own.get(kind, 0)

    def seconds(self, kind: str) -> list[float]:
        """Return the newest durations of a kind, the oldest first."""
        with self._lock:
            return list(self._seconds.get(kind, ()))

    def as_json(self) -> dict[str, list[float]]:
        """Return all durations, for `adopt`."""
        with self._lock:
            return {kind: [round(value, 6) for value in values] for kind, values in self._seconds.items()}
