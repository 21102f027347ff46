"""Goodput of runs that choose their checkpoint intervals, next to a sweep of fixed intervals, in virtual time.

    python -m bench.auto_intervals [--runs 5] [--failures 60] [--output bench/results/auto-intervals-<date>.json]

Failures are a Poisson process with the same times for all intervals. The plans are those of the trainer's own code
(trainer/checkpoint/intervals.py), which sees noisy durations, its restarts and nothing else. Each case is a run of an
assumed size; nothing is trained.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import random
import statistics
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.machine import machine
from trainer.checkpoint.intervals import Plan, Planner, own_costs
from trainer.config import Checkpoint
from trainer.hosts.measurements import Measurements
from trainer.hosts.run_record import PERIOD_SECONDS, Tally
from trainer.schedule import Schedule
from xpk_shared.goodput.restarts import Tier

PLANS = 20  # between two failures; a real run plans every half minute
NOISE = 0.2  # standard deviation of the logarithm of measured durations
FACTORS = tuple(2 ** (power / 2) for power in range(-4, 5))  # of the sweep, times the first-order optimum
LOCAL_FACTORS = FACTORS[::2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A run, and how it changes half-way."""

    name: str
    chips: int
    mtbf: float  # seconds between two failures of the job
    step: float
    recovery: float
    persistent: Tier
    local: Tier | None = None
    local_share: float = 0.0
    prior_mtbf_chip_hours: float = 50_000.0
    save_factor: float = 1.0  # cost of saves in the second half
    rate_factor: float = 1.0  # rate of failures in the second half


_LARGE: dict[str, Any] = {"step": 10.0, "recovery": 120.0, "persistent": Tier(save=5.0, commit=60.0)}
_HOUR = 3600.0
CASES = (
    Case(name="two local slices, a failure a minute", chips=8, mtbf=60.0, step=0.2, recovery=4.0,
         persistent=Tier(save=0.05, commit=0.5)),
    Case(name="16 slices, as the prior says", chips=4096, mtbf=50_000 / 4096 * _HOUR, **_LARGE),
    Case(name="16 slices, ten times as many failures", chips=4096, mtbf=5_000 / 4096 * _HOUR, **_LARGE),
    Case(name="16 slices, a tenth of the failures", chips=4096, mtbf=500_000 / 4096 * _HOUR, **_LARGE),
    Case(name="16 slices, two tiers", chips=4096, mtbf=5_000 / 4096 * _HOUR, **_LARGE,
         local=Tier(save=0.5, commit=5.0), local_share=0.92),
    Case(name="199 slices, two tiers, slow restarts", chips=50_944, mtbf=50_000 / 50_944 * _HOUR, step=27.8,
         recovery=1100.0, persistent=Tier(save=3.0, commit=60.0), local=Tier(save=0.5, commit=5.0), local_share=0.9),
    Case(name="16 slices; half-way saves cost five times as much", chips=4096, mtbf=5_000 / 4096 * _HOUR, **_LARGE,
         save_factor=5.0),
    Case(name="16 slices; half-way four times as many failures", chips=4096, mtbf=20_000 / 4096 * _HOUR, **_LARGE,
         rate_factor=4.0),
)  # fmt: skip


class Run:
    """One run in virtual time; `every` and `local_every` are steps, or 0 to choose them as the trainer does."""

    def __init__(self, case: Case, seconds: float, seed: int, every: int = 0, local_every: int = 0) -> None:
        self.case, self.seconds = case, seconds
        self.every, self.local_every = every, local_every
        self._failures, self._noise = random.Random(f"failures {seed}"), random.Random(f"noise {seed}")
        self._now, self._at = 0.0, 0
        self._committed = {"save": 0, "local_save": 0}
        self._pending: dict[str, tuple[float, int]] = {}  # time of the commit, and its step
        self._measured, self._tally = Measurements(), Tally()
        settings = Checkpoint(
            every="auto", local_every="auto" if case.local else 0, mtbf_chip_hours=case.prior_mtbf_chip_hours
        )
        self._planner = Planner(
            settings=settings,
            chips=case.chips,
            has_copies=case.local is not None,
            period_seconds=max(PERIOD_SECONDS, case.mtbf / PLANS),
        )
        self.intervals: list[tuple[float, int, int]] = []  # time, every, local_every

    def goodput(self) -> float:
        """Run, and return the share of the time in steps that count."""
        failure = self._next_failure(0.0)
        while self._now < self.seconds:
            self._attempt(failure)
            failure = self._recover(failure)
        return self._at * self.case.step / self._now

    def _attempt(self, failure: float) -> None:
        """Train until a failure, or the end of the run."""
        plan = Plan(Schedule(self.every), Schedule(self.local_every), 0 if not self.every else sys.maxsize)
        began, end = self._now, min(failure, self.seconds)
        while True:
            if self._at >= plan.next:
                plan = self._plan(plan, self._tally.run_seconds + self._now - began)
            target = min(plan.next, _next_due(plan.save, self._at), _next_due(plan.local, self._at))
            whole = max(0, int((end - self._now) / self.case.step))
            if self._at + whole < target:
                self._at, self._now = self._at + whole, end
                break
            self._now += (target - self._at) * self.case.step
            self._at = target
            for kind, schedule in (("local_save", plan.local), ("save", plan.save)):
                if schedule.is_due(self._at):
                    self._save(kind)
        self._tally.run_seconds += end - began

    def _plan(self, former: Plan, run_seconds: float) -> Plan:
        steps_known = (self._at > 0 and former.next > 0) or bool(self._measured.seconds("save"))
        plan = self._planner.plan(
            former,
            self._at,
            step_seconds=self._noisy(self.case.step, 0.05) if steps_known else 0.0,
            costs=own_costs(self._measured),
            recovery=self.case.recovery,
            tally=dataclasses.replace(self._tally, run_seconds=run_seconds),
        )
        if (plan.save.every, plan.local.every) != (former.save.every, former.local.every):
            self.intervals.append((self._now, plan.save.every, plan.local.every))
        return plan

    def _save(self, kind: str) -> None:
        """Save after the commit of the preceding save of this tier."""
        tier = self.case.persistent if kind == "save" else self.case.local
        assert tier is not None
        factor = self.case.save_factor if self._now > self.seconds / 2 else 1.0
        began = self._now
        self._commit(kind, math.inf)
        save, commit = self._noisy(tier.save * factor), self._noisy(tier.commit * factor)
        self._now += save
        self._pending[kind] = self._now + commit, self._at
        if self.every:
            return  # nobody asks
        self._measured.take_event(kind, self._now - began + commit, {"blocked": self._now - began})

    def _commit(self, kind: str, until: float) -> None:
        """Commit the pending save if that is done before a time; with math.inf, wait for it."""
        when, step = self._pending.get(kind, (math.inf, 0))
        if when <= until and kind in self._pending:
            self._committed[kind] = max(self._committed[kind], step)
            del self._pending[kind]
            self._now = max(self._now, when) if math.isinf(until) else self._now

    def _recover(self, failure: float) -> float:
        """Go back to the newest checkpoint after a failure; return the time of the next one."""
        if failure >= self.seconds:
            return failure
        for kind in self._committed:
            self._commit(kind, failure)
        self._pending.clear()
        survives = self._failures.random() < self.case.local_share
        newest = max(self._committed.values()) if survives else self._committed["save"]
        self._committed["local_save"] = min(self._committed["local_save"], newest) if survives else newest
        self._at = newest
        self._tally.failures += 1
        if self.case.local:
            self._tally.local_restores += survives
            self._tally.persistent_restores += not survives
        upcoming = self._next_failure(failure)
        ready = failure + self.case.recovery
        while upcoming < ready:
            ready, upcoming = upcoming + self.case.recovery, self._next_failure(upcoming)
        self._now = ready
        return upcoming

    def _next_failure(self, now: float) -> float:
        factor = self.case.rate_factor if now > self.seconds / 2 else 1.0
        return now + self._failures.expovariate(factor / self.case.mtbf)

    def _noisy(self, seconds: float, deviation: float = NOISE) -> float:
        return seconds * self._noise.lognormvariate(-(deviation**2) / 2, deviation)


def _next_due(schedule: Schedule, at: int) -> int:
    """Return the first step after `at` at which a schedule is due."""
    if not schedule.every:
        return sys.maxsize
    return max(schedule.first, at + 1 + (schedule.first - at - 1) % schedule.every)


def sweep(case: Case) -> Iterator[tuple[int, int]]:
    """Yield fixed intervals around the first-order optimum (Young 1974) of each tier, no shorter than a commit."""
    rates = {"save": 1 / case.mtbf, "local": case.local_share / case.mtbf}
    if case.local:
        rates["save"] *= 1 - case.local_share
    optimum = math.sqrt(2 * case.persistent.save / rates["save"])
    least = math.ceil(case.persistent.commit / case.step)
    persistent = sorted({max(least, round(factor * optimum / case.step)) for factor in FACTORS})
    if not case.local:
        yield from ((every, 0) for every in persistent)
        return
    of_local = math.sqrt(2 * case.local.save / rates["local"])
    local = sorted({max(1, round(factor * of_local / case.step)) for factor in LOCAL_FACTORS})
    yield from itertools.product(persistent[::2], local)


def compare(case: Case, runs: int, failures: int) -> dict[str, Any]:
    """Return the mean goodput of automatic intervals, and of the sweep, over runs with the same failures."""
    seconds = case.mtbf * failures
    automatic = [Run(case, seconds, seed) for seed in range(runs)]
    auto = statistics.fmean(run.goodput() for run in automatic)
    fixed = {
        pair: statistics.fmean(Run(case, seconds, seed, *pair).goodput() for seed in range(runs))
        for pair in sweep(case)
    }
    best = max(fixed, key=lambda pair: fixed[pair])
    return {
        "case": case.name,
        "days": round(seconds / 86400, 2),
        "auto": round(auto, 4),
        "auto_every": statistics.median(run.intervals[-1][1] for run in automatic),
        "auto_local_every": statistics.median(run.intervals[-1][2] for run in automatic),
        "best": round(fixed[best], 4),
        "best_every": best[0],
        "best_local_every": best[1],
        "auto_of_best": round(auto / fixed[best], 4),
        "sweep": [{"every": pair[0], "local_every": pair[1], "goodput": round(fixed[pair], 4)} for pair in fixed],
    }


def main() -> int:
    """Compare all cases, print and write the result; return 0 if each is within a hundredth of the best."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each case and interval")
    parser.add_argument("--failures", type=int, default=60, help="mean number of failures of a run")
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--output", type=Path, default=Path(f"bench/results/auto-intervals-{today}.json"))
    options = parser.parse_args()
    results = []
    for case in CASES:
        results.append(compare(case, options.runs, options.failures))
        last = results[-1]
        steps = f"{last['auto_every']:g}/{last['auto_local_every']:g}"
        print(
            f"{last['auto']:7.2%} of {last['best']:7.2%} = {last['auto_of_best']:7.2%}  {case.name} "
            f"(auto {steps} steps, best {last['best_every']}/{last['best_local_every']})",
            flush=True,
        )
    document = {"date": today, "machine": machine(), "runs": options.runs, "failures": options.failures}
    options.output.write_text(json.dumps(document | {"cases": results}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(result["auto_of_best"] >= 0.99 for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
