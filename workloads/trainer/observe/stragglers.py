"""Step times, and detection of stragglers.

In a step all hosts wait for each other, so a step's time says nothing about a single host. Each host therefore measures
its own delays, averaged over `observe.straggler_check_every` steps:

    data   seconds per step in which its chips waited for its batch
    host   seconds per step in which they waited for its Python code: logging, other processes on the machine, ...
    chip   seconds of fixed matrix products on its chips, without communication (chip_benchmark.py); not on emulated
           chips, where they would measure only the load of the machine's cores

It reports them to process 0 (hosts/peers.py), which records the hosts that are slower than the median host, and names
those that were slower in most of the recent comparisons, because a single comparison is not conclusive.
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
_WORDS = {"data": "waits for its data", "host": "is slow to dispatch steps", "chip": "has slow chips"}
_MEASURED = {"data": "per step", "host": "per step", "chip": "for the same products"}


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
        threshold = median * _RATIO if reason == "chip" else median + _SHARE * step_seconds
        slow_ones += [
            Slow(n, reason, report[reason], median) for n, report in enumerate(reports) if report[reason] > threshold
        ]
    return sorted(slow_ones, key=lambda slow: slow.median - slow.own)


class StragglerCheck:
    """One host's part of the comparison. `make_benchmark` compiles the chip benchmark when it is first needed."""

    def __init__(self, job: Job, make_benchmark: Callable[[], Callable[[], float]] | None) -> None:
        self._job, self._make_benchmark = job, make_benchmark
        self._benchmark: Callable[[], float] | None = None
        self._data, self._host, self._steps = 0.0, 0.0, 0
        self._step_seconds: list[float] = []
        self._slower: deque[set[tuple[int, str]]] = deque(maxlen=_COMPARISONS)  # on process 0

    def record_waits(self, data_seconds: float, host_seconds: float) -> None:
        """Record the seconds that this host's chips waited in a step."""
        self._data, self._host, self._steps = self._data + data_seconds, self._host + host_seconds, self._steps + 1

    def record_step(self, seconds: float) -> None:
        """Record the duration of a step."""
        self._step_seconds.append(seconds)

    def compare(self, step: int) -> None:
        """Measure the chips and report to process 0; every host calls it, while no step is running."""
        steps, key = max(1, self._steps), f"pace/{step}"
        delays = {"data": self._data / steps, "host": self._host / steps} | self._measure_chips(step)
        self._job.peers.report(key, {reason: round(seconds, 6) for reason, seconds in delays.items()})
        if self._job.is_first:
            median_seconds = statistics.median(self._step_seconds) if self._step_seconds else 0.0
            threading.Thread(target=self._judge, args=(step, key, median_seconds), name="pace", daemon=True).start()
        self._data, self._host, self._steps, self._step_seconds = 0.0, 0.0, 0, []

    def _measure_chips(self, step: int) -> dict[str, float]:
        """Return the seconds of the fixed product on this host's chips, if measured."""
        if self._make_benchmark is None:
            return {}
        if self._benchmark is None:
            with timeouts.compilation(self._job, "its chip benchmark", step, is_own=lambda: True):
                self._benchmark = self._make_benchmark()
            self._measure(self._benchmark, step)  # the first run is slower
        return {"chip": self._measure(self._benchmark, step)}

    def _measure(self, benchmark: Callable[[], float], step: int) -> float:
        with self._job.watchdog.waiting(f"its chip benchmark after step {step}", step, is_own=lambda: True):
            return benchmark()

    def _judge(self, step: int, key: str, step_seconds: float) -> None:
        """Wait for all hosts' reports and name the stragglers; runs on a thread of process 0."""
        reports = self._job.peers.collect(key)
        slow, name = slow_hosts(reports, step_seconds), self._job.host.name
        self._slower.append({(slow_host.process, slow_host.reason) for slow_host in slow})
        medians = {reason: statistics.median_low([r[reason] for r in reports]) for reason in reports[0]}
        conclusive = [
            sum((slow_host.process, slow_host.reason) in slower for slower in self._slower) >= _MIN_SLOWER
            for slow_host in slow
        ]
        described: list[dict[str, Any]] = [
            {"host": name(slow_host.process), **dataclasses.asdict(slow_host), "conclusive": is_conclusive}
            for slow_host, is_conclusive in zip(slow, conclusive, strict=True)
        ][:_MAX_NAMED]
        seconds = round(step_seconds, 4)
        self._job.events.write("pace", step, at_once=bool(slow), step_seconds=seconds, medians=medians, slow=described)
        for slow_host in [
            slow_host for slow_host, is_conclusive in zip(slow, conclusive, strict=True) if is_conclusive
        ][:_MAX_NAMED]:
            measured = (
                f"{slow_host.own:.4f} s {_MEASURED[slow_host.reason]}, {slow_host.median:.4f} s on the median host"
            )
            say(f"slow {step:6d}   {name(slow_host.process)} {_WORDS[slow_host.reason]}: {measured}")
