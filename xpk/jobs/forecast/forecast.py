"""Forecast of goodput for three ways to handle failures: new pods, restarts in place, and elastic slices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from xpk.jobs.forecast.assumptions import Assumption, Assumptions, default_assumptions, named
from xpk.jobs.forecast.elastic import ElasticJob, Outage, poisson
from xpk.jobs.forecast.simulation import Pattern, Simulated, elastic_run, restart_run, simulate
from xpk_shared.goodput.auto import ELASTIC_SECONDS, AutoIntervals, Bounds, Measured, choose_intervals
from xpk_shared.goodput.failures import FailureRate
from xpk_shared.goodput.restarts import Failures, Intervals, Restarts, Tier, best_intervals

TOLERANCE = 0.01  # of goodput, between the closed form and the simulation
_FAILURES = 3000  # in a simulation
_HARDLY = 0.05  # goodput
_MAX_SPARES = 64

Handling = Literal["new pods", "in place", "elastic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run whose goodput is forecast."""

    name: str  # the configuration, or the workload
    tpu_type: str
    num_slices: int
    hosts_per_slice: int
    chips_per_slice: int
    step_seconds: float
    rate: FailureRate
    step_source: str = "option"
    min_slices: int | None = None  # with elastic slices; None: more than half of the slices
    host_bytes: float | None = None  # state of the chips of a host
    elastic_note: str = ""  # reason for which slices of this job cannot be elastic
    values: Mapping[str, tuple[float, str]] = field(default_factory=dict)  # assumptions and their sources

    @property
    def replaces_slices(self) -> bool:
        """True if a lost machine costs only its slice new pods when the others restart in place."""
        return self.num_slices > 1

    @property
    def chips(self) -> int:
        """Chips of all slices."""
        return self.num_slices * self.chips_per_slice


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingForecast:
    """Forecast for one way to handle failures, with its best checkpoint intervals and spares."""

    handling: Handling  # new pods, restarts in place, or elastic slices
    goodput: float  # share of the wall time, in closed form; of elastic slices: progress relative to all slices
    simulated: Simulated  # the same by simulation
    every: int  # best `checkpoint.every`, in steps
    every_seconds: float  # the same in seconds
    local_every: int  # best `checkpoint.local_every`, in steps; 0: no local tier
    local_every_seconds: float  # the same in seconds
    auto_every: int  # what `checkpoint.every=auto` chooses first, in steps
    auto_local_every: int  # what `checkpoint.local_every=auto` chooses first, in steps; 0: no local tier
    spares: int  # spare slices with the lowest cost of progress
    dollars_per_day: float | None  # cost of all slices with the spares; null without a price
    dollars_lost_per_day: float | None  # cost of the time without progress, and of the spares


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputForecast:
    """Forecast of the goodput of a run."""

    name: str  # configuration, or workload that the figures come from
    tpu_type: str  # accelerator type of the slices
    num_slices: int  # number of slices
    chips: int  # chips of all slices
    step_seconds: float  # seconds of a step
    step_source: str  # source of `step_seconds`
    mtbf_chip_hours: float  # chip-hours for each failure
    mtbf_chip_hours_low: float  # lower end of the 90 % interval
    mtbf_chip_hours_high: float  # upper end of the 90 % interval
    failures_per_day: float  # failures of the job
    best: Handling  # the one with the lowest cost of progress
    goodput_low: float  # goodput of the best one with `mtbf_chip_hours_low`
    goodput_high: float  # goodput of the best one with `mtbf_chip_hours_high`
    handlings: list[HandlingForecast]  # the ways to handle failures, the best first
    settings: list[str]  # arguments of `xpk workload create` for the best one
    dollars_per_chip_hour: float | None  # price; null without one
    price_source: str  # source of the price
    assumptions: list[Assumption]  # durations and shares that the forecast follows from
    notes: list[str]  # limits of this forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of a chip for an hour in US dollars."""

    dollars: float
    source: str


def assumptions_of(job: Job) -> tuple[Assumptions, dict[str, str]]:
    """Return the assumptions of a job, with the source of each."""
    assumed, sources = default_assumptions(
        hosts_per_slice=job.hosts_per_slice, num_slices=job.num_slices, host_bytes=job.host_bytes
    )
    changed = dataclasses.replace(assumed, **{name: value for name, (value, _) in job.values.items()})
    return changed, sources | {name: source for name, (_, source) in job.values.items()}


def forecast_goodput(job: Job, price: Price | None = None, *, seed: int = 0) -> GoodputForecast:
    """Return the forecast of a job. The first of `handlings` has the lowest cost of progress."""
    assumed, sources = assumptions_of(job)
    rate = job.rate.per_second(job.chips)
    planned = sorted(_planned(job, assumed, rate), key=lambda plan: -plan.progress_per_slice)
    best, (low, high) = planned[0], job.rate.mtbf_interval()
    at_ends = [best.with_rate(FailureRate.prior(mtbf).per_second(job.chips)).goodput for mtbf in (low, high)]
    notes = [job.elastic_note] if job.elastic_note else []
    handlings = [_handling_forecast(plan, job, price, seed) for plan in planned]
    for one in handlings:
        if not one.simulated.low - TOLERANCE <= one.goodput <= one.simulated.high + TOLERANCE:
            notes.append(f"{one.handling}: failures are so frequent that the closed form is off; use the simulation")
    if handlings[0].goodput < _HARDLY:
        notes.append("failures are so frequent that the run makes hardly any progress")
    return GoodputForecast(
        name=job.name,
        tpu_type=job.tpu_type,
        num_slices=job.num_slices,
        chips=job.chips,
        step_seconds=job.step_seconds,
        step_source=job.step_source,
        mtbf_chip_hours=round(job.rate.mtbf_chip_hours, 3),
        mtbf_chip_hours_low=round(low, 3),
        mtbf_chip_hours_high=round(high, 3),
        failures_per_day=round(rate * 86400, 3),
        best=best.handling,
        goodput_low=round(at_ends[0], 4),
        goodput_high=round(at_ends[1], 4),
        handlings=handlings,
        settings=_settings(job, handlings[0]),
        dollars_per_chip_hour=price.dollars if price else None,
        price_source=price.source if price else "",
        assumptions=named(assumed, sources),
        notes=notes,
    )


def _settings(job: Job, best: HandlingForecast) -> list[str]:
    """Return the arguments of `workload create` for a way to handle failures."""
    words: list[str] = []
    if best.handling == "new pods":
        words = ["--no-restart-in-place"]
    elif best.handling == "elastic":
        words = ["--min-slices", str(job.min_slices or job.num_slices // 2 + 1)]
    if best.local_every:
        words += ["--node-folder", "/dev/shm"]  # noqa: S108 (memory of the node, as docs/checkpoints.md describes)
    words += ["--", "--set", f"checkpoint.every={best.every}"]
    if best.local_every:
        words += ["--set", f"checkpoint.local_every={best.local_every}", "--set", "checkpoint.local_path=/dev/shm"]
    return words


def best_handling(job: Job) -> tuple[Handling, float, Intervals, int]:
    """Return (handling, goodput, intervals, spares) with the lowest cost of progress, without a simulation."""
    assumed, _ = assumptions_of(job)
    plan = max(_planned(job, assumed, job.rate.per_second(job.chips)), key=lambda plan: plan.progress_per_slice)
    return plan.handling, plan.goodput, plan.intervals, plan.spares


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """One way to handle failures: its intervals and spares, and goodput at any rate of failures."""

    handling: Handling
    intervals: Intervals
    auto: AutoIntervals
    spares: int
    goodput: float
    num_slices: int
    at_rate: Callable[[float], float]
    simulated: Callable[[int], Simulated]

    @property
    def progress_per_slice(self) -> float:
        return self.goodput / (self.num_slices + self.spares)

    def with_rate(self, rate: float) -> _Planned:
        """Return the same intervals and spares with another rate of failures."""
        return dataclasses.replace(self, goodput=self.at_rate(rate))


def _planned(job: Job, assumed: Assumptions, rate: float) -> Iterator[_Planned]:
    yield _planned_restarts("new pods", job, assumed, rate)
    yield _planned_restarts("in place", job, assumed, rate)
    if job.num_slices > 1 and not job.elastic_note:
        yield _planned_elastic(job, assumed, rate)


def _planned_restarts(handling: Handling, job: Job, assumed: Assumptions, rate: float) -> _Planned:
    restarts = functools.partial(restarts_of, handling, assumed, replaces_slices=job.replaces_slices)
    tiers = [restarts(rate, has_local=has_local) for has_local in (False, True)]
    choices = [(best_intervals(tier, job.step_seconds), tier) for tier in tiers]
    intervals, tier = max(choices, key=lambda choice: choice[0].goodput)
    steps = intervals.local_every or intervals.every
    pattern = Pattern(segment=steps * job.step_seconds, segments=intervals.every // steps)
    machines = 1 - assumed.process_share

    def enough(rate: float, spares: int) -> float:
        return sum(poisson(machines * rate * assumed.repair, spares))

    def at_rate(rate: float) -> float:
        changed = restarts(rate, has_local=bool(intervals.local_every))
        return changed.goodput(pattern.segment, pattern.segments) * enough(rate, spares)

    spares = _best_spares(lambda spares: intervals.goodput * enough(rate, spares), job.num_slices)
    once = functools.partial(restart_run, tier, pattern, repair=assumed.repair, spares=spares)
    return _Planned(
        handling=handling,
        intervals=intervals,
        auto=_auto(tier, job.step_seconds),
        spares=spares,
        goodput=at_rate(rate),
        num_slices=job.num_slices,
        at_rate=at_rate,
        simulated=lambda seed: simulate(once, failures=_FAILURES, seed=seed),
    )


def restarts_of(
    handling: Handling, assumed: Assumptions, rate: float, *, has_local: bool, replaces_slices: bool = False
) -> Restarts:
    """Return the failures and tiers of a job that restarts as a whole.

    `replaces_slices`: with restarts in place, only the slice of a lost machine gets new pods.
    """
    pods = assumed.restart_pods + assumed.compilation
    processes = pods if handling == "new pods" else assumed.restart_processes + assumed.compilation
    restore = assumed.local_restore if has_local else assumed.restore
    lost = (1 - assumed.process_share) * rate
    is_one = replaces_slices and handling == "in place"
    of_machines = assumed.machine_detection + (assumed.restart_slice + processes if is_one else pods)
    kinds = (
        Failures(
            per_second=assumed.process_share * rate,
            recovery_seconds=assumed.detection + processes + restore,
            local_survives=has_local,
        ),
        Failures(
            per_second=lost * assumed.local_share,
            recovery_seconds=of_machines + restore,
            local_survives=has_local,
            loses_machine=True,
        ),
        Failures(
            per_second=lost * (1 - assumed.local_share),
            recovery_seconds=of_machines + assumed.restore,
            local_survives=False,
            loses_machine=True,
        ),
    )
    return Restarts(
        failures=kinds,
        persistent=Tier(save=assumed.save, commit=assumed.commit),
        local=Tier(save=assumed.local_save, commit=assumed.local_commit) if has_local else None,
    )


def _auto(tier: Restarts, step_seconds: float) -> AutoIntervals:
    """Return what a run of these failures and costs chooses itself."""
    survive = sum(kind.per_second for kind in tier.failures if kind.local_survives)
    measured = Measured(
        step_seconds=step_seconds,
        persistent=tier.persistent,
        local=tier.local,
        failures_per_second=tier.rate,
        local_share=survive / tier.rate,
        recovery_seconds=sum(kind.per_second * kind.recovery_seconds for kind in tier.failures) / tier.rate,
    )
    return choose_intervals(measured, Bounds(local_every=None if tier.local else 0))


def _auto_elastic(job: Job, assumed: Assumptions) -> AutoIntervals:
    """Return what elastic slices choose as long as they are never all lost."""
    measured = Measured(
        step_seconds=job.step_seconds,
        persistent=Tier(save=assumed.save, commit=assumed.commit),
        local=None,
        failures_per_second=0.0,
        is_elastic=True,
    )
    return choose_intervals(measured, Bounds())


def elastic_of(job: Job, assumed: Assumptions, rate: float, spares: int) -> ElasticJob:
    """Return the elastic slices of a job."""
    join = assumed.local_restore + assumed.compilation
    return ElasticJob(
        num_slices=job.num_slices,
        min_slices=job.min_slices or job.num_slices // 2 + 1,
        outages=(
            Outage(per_second=assumed.process_share * rate, seconds=assumed.restart_processes + join),
            Outage(
                per_second=(1 - assumed.process_share) * rate,
                seconds=assumed.machine_detection + assumed.restart_slice + join,
                loses_machine=True,
            ),
        ),
        repair=assumed.repair,
        spares=spares,
        stall=assumed.stall,
        save=assumed.save,
        overhead=assumed.elastic_overhead,
    )


def _planned_elastic(job: Job, assumed: Assumptions, rate: float) -> _Planned:
    """Return the plan of elastic slices."""
    every = max(1, round(max(ELASTIC_SECONDS, assumed.commit) / job.step_seconds))
    seconds = every * job.step_seconds

    def at_rate(rate: float, spares: int) -> float:
        return elastic_of(job, assumed, rate, spares).goodput(seconds)

    spares = _best_spares(functools.partial(at_rate, rate), job.num_slices)
    once = functools.partial(elastic_run, elastic_of(job, assumed, rate, spares), seconds)
    goodput = at_rate(rate, spares)
    return _Planned(
        handling="elastic",
        intervals=Intervals(every=every, local_every=0, goodput=goodput),
        auto=_auto_elastic(job, assumed),
        spares=spares,
        goodput=goodput,
        num_slices=job.num_slices,
        at_rate=functools.partial(at_rate, spares=spares),
        simulated=lambda seed: simulate(once, failures=_FAILURES, seed=seed),
    )


def _best_spares(goodput: Callable[[int], float], num_slices: int) -> int:
    """Return the number of spare slices with the most progress for each slice that is paid for."""
    return max(range(min(_MAX_SPARES, num_slices) + 1), key=lambda spares: goodput(spares) / (num_slices + spares))


def _handling_forecast(plan: _Planned, job: Job, price: Price | None, seed: int) -> HandlingForecast:
    simulated, intervals = plan.simulated(seed), plan.intervals
    hour = price.dollars * job.chips_per_slice if price else None
    daily = None if hour is None else 24 * hour * (job.num_slices + plan.spares)
    lost = None if hour is None or daily is None else daily - 24 * hour * job.num_slices * plan.goodput
    return HandlingForecast(
        handling=plan.handling,
        goodput=round(plan.goodput, 4),
        simulated=Simulated(
            goodput=round(simulated.goodput, 4),
            low=round(simulated.low, 4),
            high=round(simulated.high, 4),
            failures=simulated.failures,
        ),
        every=intervals.every,
        every_seconds=round(intervals.every * job.step_seconds, 1),
        local_every=intervals.local_every,
        local_every_seconds=round(intervals.local_every * job.step_seconds, 1),
        auto_every=plan.auto.every or 0,
        auto_local_every=plan.auto.local_every or 0,
        spares=plan.spares,
        dollars_per_day=None if daily is None else round(daily, 2),
        dollars_lost_per_day=None if lost is None else round(lost, 2),
    )
