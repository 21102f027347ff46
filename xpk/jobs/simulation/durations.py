"""Durations of runs: stated, limited, estimated from their metrics, or assumed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from xpk.jobs.output.folder import Progress
from xpk.model.errors import XpkError

DEFAULT_SECONDS = 86400.0  # of runs of unknown duration
_EARLY, _LATE = 0.8, 1.25  # of an estimate from metrics
_SHORT, _LONG = 0.5, 2.0  # of an assumed duration
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds that a workload still has to run: at least, as expected, and at most; `words` state the source."""

    low: float
    expected: float
    high: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Knowledge about the durations of runs. `stated`: total seconds by label; `progress`: by UID."""

    assumed: float = DEFAULT_SECONDS
    stated: Mapping[str, float] = field(default_factory=dict)
    progress: Mapping[str, Progress] = field(default_factory=dict)


def duration_of(uid: str, label: str, ran: float, limit: float | None, sources: Sources) -> Duration:
    """Return the remaining duration of a workload that has run for `ran` seconds, of at most `limit` in all."""
    if (total := sources.stated.get(label)) is not None:
        left = max(0.0, total - ran)
        return Duration(left, left, left, f"{words_of(total)} in all, as given")
    progress = sources.progress.get(uid)
    if progress is not None and progress.eta_seconds is not None:
        left = progress.eta_seconds
        words = f"{words_of(left)} left at the pace of step {progress.step} of {progress.total_steps}"
        duration = Duration(_EARLY * left, left, _LATE * left, words)
    elif limit is not None:
        duration = Duration(0.0, limit, limit, "")
    else:
        duration = _assumed(sources.assumed, ran)
    if limit is None:
        return duration
    rest = max(0.0, limit - ran)
    words = ", ".join(filter(None, (duration.words, f"time limit of {words_of(limit)}")))
    return Duration(min(duration.low, rest), min(duration.expected, rest), min(duration.high, rest), words)


def _assumed(total: float, ran: float) -> Duration:
    if ran < total:
        words = f"{words_of(total)} in all, assumed"
        return Duration(max(0.0, _SHORT * total - ran), total - ran, _LONG * total - ran, words)
    words = f"{words_of(total)} more, assumed: it has run for {words_of(ran)} already"
    return Duration(0.0, total, _LONG * total, words)


def read_all(
    readers: Mapping[str, Callable[[], Progress | None]], seconds: float
) -> tuple[dict[str, Progress], Sequence[str]]:
    """Return the progress of runs by UID, and the UIDs of those that were not read within `seconds`.

    Output that cannot be read counts as unknown.
    """
    waiting, results = SimpleQueue[str](), SimpleQueue[tuple[str, Progress | None]]()
    for uid in readers:
        waiting.put(uid)

    def work() -> None:
        with suppress(Empty):
            while True:
                uid = waiting.get_nowait()
                try:
                    results.put((uid, readers[uid]()))
                except (XpkError, OSError, ValueError):
                    results.put((uid, None))

    # Daemons: a bucket that does not answer must not delay the end of the command.
    for _ in range(min(_THREADS, len(readers))):
        threading.Thread(target=work, daemon=True).start()
    progress, remaining, end = dict[str, Progress](), set(readers), time.monotonic() + seconds
    with suppress(Empty):
        while remaining:
            uid, result = results.get(timeout=max(0.001, end - time.monotonic()))
            remaining.discard(uid)
            if result is not None:
                progress[uid] = result
    return progress, sorted(remaining)


def words_of(seconds: float) -> str:
    """Return a time in its two largest units, as the terminal prints it."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{number}{unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")) if number]
    return "".join(parts[:2]) or "0s"
