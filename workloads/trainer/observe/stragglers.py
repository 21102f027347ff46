"""Step times, and detection of stragglers.

In a step all hosts wait for each other, so a step's time says nothing about a single host. Each host therefore measures
its own delays, averaged over `observe.straggler_check_every` steps:

    data   seconds per step in which its chips waited for its batch
    host   seconds per step in which they waited for its Python: logging, other processes on the machine, ...
    chip   seconds of a fixed matrix product on its chips, without any other host (chip_benchmark.py); not on
           emulated chips, where it would measure only the load of the machine's cores

and reports them to process 0 (hosts/peers.py), which records those slower than the median host, and names those that
were in most of the recent comparisons, as a single one proves nothing.
"""

import dataclasses
import statistics
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.hosts import timeouts
from trainer.hosts.job import Job
from trainer.telemetry.metrics import say

_MAX_NAMED = 5  # slow hosts in an event
_SHARE = 0.1  # fraction of a step's time that a host must cost the others to be named
_RATIO = 1.25  # of the median host's time for the same products
_MIN_SLOWER, _COMPARISONS = 3, 5  # a host is named if slower in at least that many of the last comparisons
_WORDS = {"data": "waits for its data", "host": "is busy with other things", "chip": "has slow chips"}
_MEASURED = {"data": "a step", "host": "a step", "chip": "for the same products"}


@dataclasses.dataclass(frozen=True, slots=True)
class Slow:
    """A host that was slower than the median host for this `reason`, in a comparison."""

    process: int
    reason: str  # data, host or chip
    own: float  # its own measurement, in seconds
    median: float  # the median host's measurement


def slow_hosts(reports: Sequence[Mapping[str, float]], step_seconds: float) -> list[Slow]:
    """Return the hosts that are slower than the median host (of two: the faster one), the slowest first.

    `reports` are in process order, with the same reasons in each.
    """
    slow_ones = []
    for reason in reports[0]:
        median = statistics.median_low([report[reason] for report in reports])
        most = median * _RATIO if reason == "chip" else median + _SHARE * step_seconds
        slow_ones += [
            Slow(n, reason, report[reason], median) for n, report in enumerate(reports) if report[reason] > most
        ]
    return sorted(slow_ones, key=lambda slow: slow.median - slow.own)


class StragglerCheck:
    """One host's part of the comparison. `probe` makes the fixed product's benchmark, when first needed."""

    def __init__(self, job: Job, probe: Callable[[], Callable[[], float]] | None) -> None:
        self._job, self._make_probe = job, probe
        self._probe: Callable[[], float] | None = None
        self._data, self._host, self._steps = 0.0, 0.0, 0
        self._took: list[float] = []
        self._slower: deque[set[tuple[int, str]]] = deque(maxlen=_COMPARISONS)  # on process 0

    def began(self, data: float, host: float) -> None:
        """Record the seconds that this host's chips waited in a step."""
        self._data, self._host, self._steps = self._data + data, self._host + host, self._steps + 1

    def took(self, seconds: float) -> None:
        """Record the duration of a step."""
        self._took.append(seconds)

    def compare(self, step: int) -> None:
        """Measure the chips and report to process 0; every host calls it, while no step is running."""
        steps, key = max(1, self._steps), f"pace/{step}"
        delays = {"data": self._data / steps, "host": self._host / steps} | self._chips(step)
        self._job.peers.report(key, {reason: round(seconds, 6) for reason, seconds in delays.items()})
        if self._job.is_first:
            took = statistics.median(self._took) if self._took else 0.0
            threading.Thread(target=self._judge, args=(step, key, took), name="pace", daemon=True).start()
        self._data, self._host, self._steps, self._took = 0.0, 0.0, 0, []

    def _chips(self, step: int) -> dict[str, float]:
        """Return the seconds of the fixed product on this host's chips, if measured."""
        if self._make_probe is None:
            return {}
        if self._probe is None:
            with timeouts.compilation(self._job, "its products of matrices", step, own=lambda: True):
                self._probe = self._make_probe()
            self._measured(self._probe, step)  # the first run is slower
        return {"chip": self._measured(self._probe, step)}

    def _measured(self, probe: Callable[[], float], step: int) -> float:
        with self._job.watchdog.waiting(f"its chips' products of matrices after step {step}", step, own=lambda: True):
            return probe()

    def _judge(self, step: int, key: str, step_seconds: float) -> None:
        """Process 0, on a thread of its own: wait for all hosts' reports and name the stragglers."""
        reports = self._job.peers.collect(key)
        slow, name = slow_hosts(reports, step_seconds), self._job.host.name
        self._slower.append({(one.process, one.reason) for one in slow})
        medians = {reason: statistics.median_low([r[reason] for r in reports]) for reason in reports[0]}
        sure = [sum((one.process, one.reason) in slower for slower in self._slower) >= _MIN_SLOWER for one in slow]
        described: list[dict[str, Any]] = [
            {"host": name(one.process), **dataclasses.asdict(one), "conclusive": certain}
            for one, certain in zip(slow, sure, strict=True)
        ][:_MAX_NAMED]
        took = round(step_seconds, 4)
        self._job.events.write("pace", step, at_once=bool(slow), step_seconds=took, medians=medians, slow=described)
        for one in [one for one, certain in zip(slow, sure, strict=True) if certain][:_MAX_NAMED]:
            measured = f"{one.own:.4f} s {_MEASURED[one.reason]}, {one.median:.4f} s on the median host"
            say(f"slow {step:6d}   {name(one.process)} {_WORDS[one.reason]}: {measured}")
