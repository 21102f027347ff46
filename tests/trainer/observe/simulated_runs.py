"""Simulated runs whose hosts are compared by the straggler test."""

import math
import random
from collections.abc import Callable

from trainer.observe.stragglers import Comparisons

Noise = Callable[[random.Random], float]
NOISES: dict[str, Noise] = {
    "gauss": lambda r: 0.05 * r.gauss(0, 1),
    "student's t": lambda r: 0.05 * r.gauss(0, 1) / math.sqrt(r.gammavariate(1, 1)),
    "cauchy": lambda r: 0.05 * abs(math.tan(math.pi * (r.random() - 0.5))),
    "log-normal": lambda r: math.expm1(r.gauss(0, 0.05)),
}


class Run:
    """A simulated run: its hosts' measurements, of which host 0 is slower by `slow`.

    `load`: share of comparisons in which a load of +50 % in all measurements begins on a random host; it lasts for
    `length` comparisons.
    """

    def __init__(
        self, noise: Noise, hosts: int, seed: int, *, slow: float = 0.0, load: float = 0.0, length: int = 1
    ) -> None:
        self.slow, self._noise, self._random = slow, noise, random.Random(seed)
        self._load, self._length = load, length
        self._loaded, self._left = 0, 0
        self._hosts = hosts
        self._comparisons = Comparisons()

    def compare(self) -> set[int]:
        """Make a comparison and return the hosts that are named."""
        r = self._random
        if not self._left and r.random() < self._load:
            self._loaded, self._left = r.randrange(self._hosts), self._length
        loaded = self._loaded if self._left else None
        self._left = max(0, self._left - 1)
        reports = []
        for host in range(self._hosts):
            factor = (1.5 if host == loaded else 1.0) * (1 + self.slow if host == 0 else 1.0)
            values = [max(0.0, factor * (1 + self._noise(r))) for _ in range(3)]
            reports.append(dict(zip(("data", "host", "chip"), values, strict=True)))
        return {slow.process for slow in self._comparisons.add(reports, 1.0)}

    def false_alarms(self, comparisons: int) -> set[int]:
        """Return the hosts that are named in so many comparisons."""
        return set().union(*(self.compare() for _ in range(comparisons)))

    def comparisons_until_named(self, most: int) -> int | None:
        """Return the number of comparisons until host 0 is named; None if it is not."""
        return next((number for number in range(1, most + 1) if 0 in self.compare()), None)
