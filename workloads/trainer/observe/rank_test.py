"""Sequential test of which hosts are slower than the others, for any distribution of the noise.

Each comparison measures all hosts at once. Without a slow host, load hits one host as likely as another: the rank of a
host is then uniform, whatever the distribution of the noise. The test bets on slow ranks with the factor

    f(d) = exp(-3 d / (N - 1)) / mean of this over d = 0 .. N - 1

where N is the number of hosts and d the number of other hosts that were at least as slow. The mean of f over uniform
ranks is 1, so a host's capital

    R(k) = (R(k - 1) + 1 / (k (k + 1))) f(d of comparison k),    R(0) = 0

grows only by luck. The shares 1 / (k (k + 1)) sum to 1, and let the host become slow at any time. By Ville's inequality
the capital exceeds c, in a run of any length, with a probability of at most 1 / c. With c = N tests / rate, the
probability that any of N hosts is reported by any of `tests` such tests is at most `rate` (Bonferroni).

Sources: J. Ville, Étude critique de la notion de collectif, 1939 (inequality); Vovk, Nouretdinov and Gammerman, Testing
exchangeability on-line, ICML 2003 (bets on ranks); Shin, Ramdas and Rinaldo, E-detectors, arXiv:2203.03532 (any start).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence

FALSE_ALARM_RATE = 0.001  # probability that an attempt without slow hosts reports one
_STEEPNESS = 3.0
_KEPT = 10.0  # capital is at most this many times the bound, so that a host that recovers is soon no longer reported


class RankTest:
    """Test of the hosts of one attempt for one reason of delays, out of `tests` reasons."""

    def __init__(self, hosts: int, tests: int, *, rate: float = FALSE_ALARM_RATE) -> None:
        weights = [math.exp(-_STEEPNESS * d / max(1, hosts - 1)) for d in range(hosts)]
        self._factors = [weight * hosts / sum(weights) for weight in weights]  # by number of hosts as slow
        self._bound = hosts * tests / rate
        self._capital = [0.0] * hosts
        self._comparisons = 0

    def add(self, seconds: Sequence[float]) -> set[int]:
        """Add a comparison, the hosts' measurements in process order; return the processes that are slower."""
        self._comparisons += 1
        share = 1 / (self._comparisons * (self._comparisons + 1))
        ordered, most = sorted(seconds), self._bound * _KEPT
        for process, own in enumerate(seconds):
            others = len(ordered) - bisect_left(ordered, own) - 1  # ties count in favor of the host
            self._capital[process] = min(most, (self._capital[process] + share) * self._factors[others])
        return {process for process, capital in enumerate(self._capital) if capital >= self._bound}
