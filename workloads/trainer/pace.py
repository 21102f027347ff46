"""How long steps take, and which hosts keep the others waiting.

In a step all hosts wait for each other, so a step's time tells nothing of a single host. Each host therefore
measures what is its own, on average over `observe.pace_every` steps:

    data   seconds a step in which its chips waited for its batch
    host   seconds a step in which they waited for its Python: logging, other processes on the machine, ...
    chip   seconds that its chips take for a fixed product of matrices, without any other host (probe.py)

and tells process 0, over the line beside JAX (peers.py), which names those that are slower than the median host.
"""

import dataclasses
import math
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer import waits
from trainer.job import Job
from trainer.metrics import say

_MOST = 5  # slow hosts in an event
_SHARE = 0.1  # of a step's time that a host has to cost the others to be named
_RATIO = 1.25  # of the median host's time for the same products
_WORDS = {"data": "waits for its data", "host": "is busy with other things", "chip": "has slow chips"}


@dataclasses.dataclass(frozen=True, slots=True)
class Slow:
    """A host that keeps the others waiting: `seconds` a step more than the median host, for this `reason`."""

    process: int
    reason: str  # data, host or chip
    seconds: float
    own: float  # what it measured, in seconds
    median: float  # what the median host did


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p99 (each a time that was measured: the nearest rank) and max; nothing of nothing."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    ranks = {f"p{n}": ordered[max(0, math.ceil(n / 100 * len(ordered)) - 1)] for n in (50, 90, 99)}
    return {name: round(value, 4) for name, value in (ranks | {"max": ordered[-1]}).items()}


def slow_hosts(reports: Sequence[Mapping[str, float]], step_seconds: float) -> list[Slow]:
    """Return the hosts that are slower than the median one (of two: the faster one), the slowest first.

    `reports` are in process order. A product that takes longer by a part makes the step longer by that part.
    """
    found = []
    for reason in ("data", "host", "chip"):
        median = statistics.median_low([report[reason] for report in reports])
        for process, report in enumerate(reports):
            own = report[reason]
            more = (own / max(median, 1e-9) - 1) * step_seconds if reason == "chip" else own - median
            if more > step_seconds * (_RATIO - 1 if reason == "chip" else _SHARE):
                found.append(Slow(process, reason, more, own, median))
    return sorted(found, key=lambda slow: -slow.seconds)


class Pace:
    """One host's share of it. `probe` gives the seconds of the fixed product; it is made when first needed."""

    def __init__(self, job: Job, probe: Callable[[], Callable[[], float]]) -> None:
        self.every = job.config.observe.pace_every
        self._job, self._make_probe = job, probe
        self._probe: Callable[[], float] | None = None
        self._data, self._host, self._steps = 0.0, 0.0, 0
        self._took: list[float] = []

    def due(self, step: int) -> bool:
        """Return whether hosts are compared after `step`."""
        return self.every > 0 and step % self.every == 0

    def began(self, data: float, host: float) -> None:
        """Take note of a step for which this host's chips waited so many seconds."""
        self._data, self._host, self._steps = self._data + data, self._host + host, self._steps + 1

    def took(self, seconds: float) -> None:
        """Take note of how long a step took."""
        self._took.append(seconds)

    def compare(self, step: int) -> None:
        """Measure the chips and tell process 0; every host calls it, while no step is under way."""
        if self._probe is None:
            waits.compilation(self._job, "its products of matrices", step, own=lambda: True)
            self._probe = self._make_probe()
            self._watch(step)
            self._probe()
        self._watch(step)
        steps, key = max(1, self._steps), f"pace/{step}"
        mine = {"data": self._data / steps, "host": self._host / steps, "chip": self._probe()}
        self._job.peers.report(key, {reason: round(seconds, 6) for reason, seconds in mine.items()})
        if self._job.is_first:
            took = statistics.median(self._took) if self._took else 0.0
            threading.Thread(target=self._judge, args=(step, key, took), name="pace", daemon=True).start()
        self._data, self._host, self._steps, self._took = 0.0, 0.0, 0, []

    def _watch(self, step: int) -> None:
        self._job.watchdog.waits(f"its chips' products of matrices after step {step}", step, own=lambda: True)

    def _judge(self, step: int, key: str, step_seconds: float) -> None:
        """Process 0, on a thread of its own: wait for all hosts' words and name the slow ones."""
        reports = self._job.peers.collect(key)
        slow, name = slow_hosts(reports, step_seconds)[:_MOST], self._job.host.name
        medians = {reason: statistics.median_low([r[reason] for r in reports]) for reason in _WORDS}
        told: list[dict[str, Any]] = [
            {"host": name(one.process), **dataclasses.asdict(one), "seconds": round(one.seconds, 6)} for one in slow
        ]
        took = round(step_seconds, 4)
        self._job.events.write("pace", step, at_once=bool(slow), step_seconds=took, medians=medians, slow=told)
        for one in slow:
            share = one.seconds / max(step_seconds, 1e-9)
            cost = f"which costs {one.seconds:.3f} s a step ({share:.0%})"
            say(f"slow {step:6d}   {name(one.process)} {_WORDS[one.reason]}, {cost}")
