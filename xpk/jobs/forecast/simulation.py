"""Monte Carlo simulation of the jobs whose goodput restarts.py and elastic.py compute in closed form.

Nothing of the closed forms is used: failures are drawn one by one, commits in the background are followed to the
second, and machines under repair are counted.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from xpk.jobs.forecast.elastic import ElasticJob
from xpk_shared.goodput.restarts import Restarts, Tier

RUNS = 20
_STUDENT = 2.093  # 97.5 % of Student's t with RUNS - 1 degrees of freedom


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Goodput of simulated runs."""

    goodput: float  # mean goodput
    low: float  # lower end of the 95 % confidence interval of the mean
    high: float  # upper end of it
    failures: int  # simulated failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Segments of work between saves, in seconds of steps."""

    segment: float
    segments: int


def simulate(once: Callable[[random.Random, int], float], *, failures: int, seed: int = 0) -> Simulated:
    """Return the mean of `once(random, failures)` over independent runs that share the failures."""
    each = max(1, failures // RUNS)
    goodputs = [once(random.Random(f"{seed} {run}"), each) for run in range(RUNS)]  # noqa: S311 (a simulation)
    mean, error = statistics.fmean(goodputs), statistics.stdev(goodputs) / math.sqrt(RUNS)
    return Simulated(goodput=mean, low=mean - _STUDENT * error, high=mean + _STUDENT * error, failures=each * RUNS)


def restart_run(
    job: Restarts, pattern: Pattern, rng: random.Random, failures: int, *, repair: float = 0.0, spares: int = 0
) -> float:
    """Return the goodput of one run. It waits while more machines than spares are under repair.

    `repair`: seconds of each repair.
    """
    rate, severities = job.rate, range(len(job.failures))
    weights = list(itertools.accumulate(kind.per_second for kind in job.failures))
    in_repair: list[float] = []
    now = up_since = 0.0
    severity = -1
    start = local = persistent = 0  # segments: of the last recovery, and those committed in each tier
    for _ in range(failures):
        now += rng.expovariate(rate)
        if now > up_since:
            reached = advance(job, pattern, start, now - up_since)
            local, persistent = max(start, reached[0]), max(persistent, reached[1])
            severity = -1
        drawn = rng.choices(severities, cum_weights=weights)[0]
        severity = max(severity, drawn)
        while in_repair and in_repair[0] <= now:
            heapq.heappop(in_repair)
        if job.failures[drawn].loses_machine:
            heapq.heappush(in_repair, now + repair)
        waiting = len(in_repair) - spares
        free = sorted(in_repair)[waiting - 1] if waiting > 0 else now
        kind = job.failures[severity]
        up_since = free + kind.recovery_seconds
        start = local if kind.local_survives else persistent
        local = start
    return start * pattern.segment / max(now, up_since)


def advance(job: Restarts, pattern: Pattern, start: int, seconds: float) -> tuple[int, int]:
    """Return the segments committed in each tier after so many seconds of work from segment `start`."""
    local = job.local or Tier(save=0.0, commit=0.0)
    each = pattern.segment + local.save
    whole = each * pattern.segments + job.persistent.save
    patterns, begun = divmod(start, pattern.segments)
    elapsed = begun * each + seconds
    finished, rest = int(elapsed // whole), elapsed % whole
    segment = min(int(rest // each), pattern.segments - 1)
    reached = (patterns + finished) * pattern.segments + segment
    is_committed = rest - segment * each >= local.commit
    saved = patterns + finished - (finished > 0 and rest < job.persistent.commit)
    return reached - (not is_committed), saved * pattern.segments


def elastic_run(job: ElasticJob, every_seconds: float, rng: random.Random, failures: int) -> float:
    """Return the progress of one run of elastic slices, relative to one without failures, saves and overhead."""
    rate = sum(outage.per_second for outage in job.outages)
    weights = [outage.per_second for outage in job.outages]
    away = [False] * job.num_slices
    pending: list[tuple[float, int]] = []  # time, slice that joins; -1: a machine is repaired
    now = progress = until = 0.0
    missing = in_repair = 0
    failure = rng.expovariate(rate)
    while failures:
        time = min(failure, pending[0][0] if pending else math.inf)
        lacking = max(0, in_repair - job.spares)
        speed = job.speed(min(job.num_slices, missing + lacking))
        progress += speed * max(0.0, time - max(now, until))
        now = time
        if now == failure:
            failures -= 1
            failure = now + rng.expovariate(rate)
            victim = rng.randrange(job.num_slices)
            if not away[victim]:
                away[victim], missing, until = True, missing + 1, max(until, now + job.stall)
                outage = rng.choices(job.outages, weights)[0]
                heapq.heappush(pending, (now + outage.seconds, victim))
                if outage.loses_machine:
                    in_repair += 1
                    heapq.heappush(pending, (now + job.repair, -1))
        else:
            _, ended = heapq.heappop(pending)
            if ended < 0:
                in_repair -= 1
            else:
                away[ended], missing, until = False, missing - 1, max(until, now + job.stall)
    return job.busy_share(every_seconds) * progress / now
