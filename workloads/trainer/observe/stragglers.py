"""Step times, and detection of stragglers.

In a step all hosts wait for each other, so a step's time says nothing about a single host. Each host therefore measures
its own delays, averaged over `observe.straggler_check_every` steps:

    data   seconds per step in which its chips waited for its batch
    host   seconds per step in which they waited for its Python code: logging, other processes on the machine, ...
    chip   seconds of fixed matrix products on its chips, without communication (chip_benchmark.py); not on emulated
           chips, where they would measure only the load of the machine's cores

It reports them to process 0 (hosts/peers.py), which names hosts only on statistical evidence (rank_test.py): no host
before the tenth comparison, and in at most one of 1,000 attempts a host that is not slower. The median delay of a named
host is at least 5 % of a step, or of the products' time, so that a load that has passed is not reported.
"""

import dataclasses
import statistics
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.hosts import timeouts
from trainer.hosts.job import Job
from trainer.observe.rank_test import RankTest
from trainer.telemetry.metrics import say

_MAX_NAMED = 5  # slow hosts in an event
_SHARE = 0.05  # fraction of a step's time, or of the median host's time for the products, that a slow host costs
_RECENT = 20  # comparisons of which the medians are reported
_REASONS = ("data", "host", "chip")
_WORDS = {"data": "waits for its data", "host": "is slow to dispatch steps", "chip": "has slow chips"}
_MEASURED = {"data": "per step", "host": "per step", "chip": "for the same products"}


@dataclasses.dataclass(frozen=True, slots=True)
class Slow:
    """A host that is slower than the median of the others for this `reason`."""

    process: int
    reason: str  # data, host or chip
    own: float  # the median of its own recent measurements, in seconds
    median: float  # the median of the median other host's, in seconds
    comparisons: int  # number of comparisons in the attempt so far


class Comparisons:
    """The comparisons of an attempt, and the hosts that are slow according to them."""

    def __init__(self) -> None:
        self._tests: dict[str, RankTest] = {}
        self._recent: deque[tuple[Sequence[Mapping[str, float]], float]] = deque(maxlen=_RECENT)
        self._number = 0

    def add(self, reports: Sequence[Mapping[str, float]], step_seconds: float) -> list[Slow]:
        """Add a comparison and return the hosts that are slower than the median of the others, the slowest first.

        `reports` are in process order, with the same reasons in each.
        """
        self._number += 1
        self._recent.append((reports, step_seconds))
        slow_hosts = []
        for reason in reports[0]:
            test = self._tests.setdefault(reason, RankTest(len(reports), len(_REASONS)))
            for process in test.add([report[reason] for report in reports]):
                own, median, share = self._delay(process, reason)
                if share >= _SHARE:
                    slow_hosts.append(Slow(process, reason, own, median, self._number))
        return sorted(slow_hosts, key=lambda slow: slow.median - slow.own)

    def _delay(self, process: int, reason: str) -> tuple[float, float, float]:
        """Return a host's seconds, the median other host's, and its delay as a share; medians of recent ones."""
        own = [reports[process][reason] for reports, _ in self._recent]
        medians = [median_seconds([*reports[:process], *reports[process + 1 :]], reason) for reports, _ in self._recent]
        units = medians if reason == "chip" else [step_seconds for _, step_seconds in self._recent]
        shares = [(a - b) / max(unit, 1e-9) for a, b, unit in zip(own, medians, units, strict=True)]
        return statistics.median(own), statistics.median(medians), statistics.median(shares)


def median_seconds(reports: Sequence[Mapping[str, float]], reason: str) -> float:
    """Return the median host's measurement; of two in the middle, the faster one's."""
    return statistics.median_low([report[reason] for report in reports])


class StragglerCheck:
    """One host's part of the comparison. `make_benchmark` compiles the chip benchmark when it is first needed."""

    def __init__(self, job: Job, make_benchmark: Callable[[], Callable[[], float]] | None) -> None:
        self._job, self._make_benchmark = job, make_benchmark
        self._benchmark: Callable[[], float] | None = None
        self._data, self._host, self._steps = 0.0, 0.0, 0
        self._step_seconds: list[float] = []
        self._comparisons, self._lock = Comparisons(), threading.Lock()  # on process 0

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
            step_seconds = statistics.median(self._step_seconds) if self._step_seconds else 0.0
            threading.Thread(target=self._judge, args=(step, key, step_seconds), name="pace", daemon=True).start()
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
        reports, name = self._job.peers.collect(key), self._job.host.name
        with self._lock:
            slow_hosts = self._comparisons.add(reports, step_seconds)
        medians = {reason: median_seconds(reports, reason) for reason in reports[0]}
        described: list[dict[str, Any]] = [
            {"host": name(slow.process), **dataclasses.asdict(slow)} for slow in slow_hosts[:_MAX_NAMED]
        ]
        for slow in slow_hosts[:_MAX_NAMED]:
            measured = f"{slow.own:.4f} s {_MEASURED[slow.reason]}, {slow.median:.4f} s on the median host"
            say(f"slow {step:6d}   {name(slow.process)} {_WORDS[slow.reason]}: {measured}")
        seconds = round(step_seconds, 4)
        self._job.events.write(
            "pace", step, at_once=bool(slow_hosts), step_seconds=seconds, medians=medians, slow=described
        )
