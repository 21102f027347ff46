"""Choices of slices for a number of tokens: end, cost, and those that no other beats in both.

Times follow from a lower bound of a step that was never measured on a TPU: they rank choices and promise nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from xpk.jobs.forecast.forecast import Job, Price, best_handling
from xpk.jobs.search.candidates import RankBy
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.errors import CapacityError
from xpk.model.forecast import StartEstimate
from xpk_shared.goodput.failures import FailureRate

_DAY = 86400.0
_FEWEST_RESTARTS = 10  # that a run is allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Price and failures of chips that are bought in one way."""

    spot: bool
    price: Price
    mtbf_chip_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Tokens to train, from `start` on, and limits of the end and the cost in US dollars."""

    tokens: float
    start: datetime
    by: datetime | None = None
    budget: float | None = None
    rank_by: RankBy = "bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Slices for a run, with the fastest mesh on them. Times and costs follow from a lower bound unless expected."""

    tpu_type: str  # accelerator type of the slices
    num_slices: int  # number of slices
    spares: int  # spare slices in addition
    spot: bool  # whether the slices are spot
    chips: int  # chips of all slices, without the spares
    mesh: dict[str, int]  # size of each axis: dp, stages, fsdp and tp
    global_batch: int  # examples in a step
    settings: list[str]  # settings that differ from the configuration
    peak_gib: float  # estimated peak memory of a chip
    hbm_gib: float  # memory of a chip that a program can use
    step_seconds: float  # lower bound of a step's time
    expected_step_seconds: float  # expected time of a step, as in `xpk workload estimate`
    bound_by: str  # slowest part of a step by the bound: compute, ici or dcn
    tokens_per_second: int  # upper bound of the tokens per second of all chips
    steps: int  # steps of the run
    handling: str  # best way to handle failures: new pods or in place
    goodput: float  # share of the time in steps that count
    every: int  # best `checkpoint.every`
    local_every: int  # best `checkpoint.local_every`; 0: no local tier
    days: float  # days of the run, by the lower bound of a step's time and the goodput
    end: str  # end by `days`, RFC 3339; empty beyond the year 9999
    dollars: float  # cost by `days`, with the spares
    expected_days: float  # days with the expected time of a step
    expected_dollars: float  # cost with the expected time of a step
    max_restarts: int  # restarts to allow: twice the expected failures
    fits_verified: bool | None = None  # whether XLA's compiler confirms that the step fits; null: not asked
    verified_peak_gib: float | None = None  # peak memory of a chip by XLA's compiler
    start: StartEstimate | None = None  # estimated start in the queue of --cluster; null without one
    commands: list[str] = field(default_factory=list)  # commands that create the slices and the run

    def days_by(self, rank_by: RankBy) -> float:
        """Return the days by the bound, or the expected ones."""
        return self.days if rank_by == "bound" else self.expected_days

    def dollars_by(self, rank_by: RankBy) -> float:
        """Return the cost by the bound, or the expected one."""
        return self.dollars if rank_by == "bound" else self.expected_dollars


def evaluate(
    estimates: Iterable[Mapping[str, Any]], markets: Callable[[SliceShape], Sequence[Market]], goal: Goal
) -> list[Choice]:
    """Return a choice for each estimate and way to buy its slices, except where failures leave no goodput."""
    every = (
        choice_of(estimate, market, goal)
        for estimate in estimates
        for market in markets(find_shape(estimate["tpu_type"]))
    )
    return [choice for choice in every if math.isfinite(choice.days)]


def select(every: Sequence[Choice], goal: Goal) -> list[Choice]:
    """Return the choices within the limits of which no other is as fast and as cheap, fastest first.

    Raises CapacityError if none is within the limits, with those that come closest.
    """
    within = [choice for choice in every if _is_within(choice, goal)]
    if not within:
        raise _too_much(every, goal)
    return pareto(within, goal.rank_by)


def pareto(every: Iterable[Choice], rank_by: RankBy) -> list[Choice]:
    """Return the choices that no other equals in one of time and cost and beats in the other, fastest first."""
    best: list[Choice] = []
    for choice in sorted(every, key=lambda choice: (choice.days_by(rank_by), choice.dollars_by(rank_by))):
        if not best or choice.dollars_by(rank_by) < best[-1].dollars_by(rank_by):
            best.append(choice)
    return best


def choice_of(estimate: Mapping[str, Any], market: Market, goal: Goal) -> Choice:
    """Return the choice of an estimate's slices; its days are infinite if failures leave no goodput."""
    shape = find_shape(estimate["tpu_type"])
    job = Job(
        name=estimate["config"],
        tpu_type=shape.name,
        num_slices=estimate["num_slices"],
        hosts_per_slice=shape.hosts,
        chips_per_slice=shape.chips,
        step_seconds=estimate["expected_step_seconds"],
        rate=FailureRate.prior(market.mtbf_chip_hours),
        host_bytes=estimate["state_gib"] * 2**30 * shape.chips_per_host,
        elastic_note="not searched",
    )
    handling, goodput, intervals, spares = best_handling(job)
    steps = math.ceil(goal.tokens / estimate["tokens_per_step"])
    hourly = market.price.dollars * shape.chips * (job.num_slices + spares)

    def days(step_seconds: float) -> float:
        return steps * step_seconds / goodput / _DAY if goodput > 0 else math.inf

    bound, expected = days(estimate["step_seconds"]), days(estimate["expected_step_seconds"])
    return Choice(
        **{name: estimate[name] for name in _OF_ESTIMATE},
        spares=spares,
        spot=market.spot,
        steps=steps,
        handling=handling,
        goodput=round(goodput, 4),
        every=intervals.every,
        local_every=intervals.local_every,
        days=bound,
        end=_date(goal.start, bound),
        dollars=24 * bound * hourly,
        max_restarts=_restarts(job, expected),
        expected_days=expected,
        expected_dollars=24 * expected * hourly,
    )


def _restarts(job: Job, days: float) -> int:
    """Return the restarts to allow in so many days: twice the failures that are expected."""
    failures = job.rate.per_second(job.chips) * _DAY * days if math.isfinite(days) else 0.0
    return max(_FEWEST_RESTARTS, math.ceil(2 * failures))


_OF_ESTIMATE = (
    "tpu_type", "num_slices", "chips", "mesh", "global_batch", "settings", "peak_gib", "hbm_gib", "step_seconds",
    "expected_step_seconds", "bound_by", "tokens_per_second",
)  # fmt: skip


def commands_of(choice: Choice, config: str, settings: Sequence[str]) -> list[str]:
    """Return the commands that create the slices and the run; the project, the zone and the data are yours."""
    spot = " --spot" if choice.spot else ""
    words = [f"run.steps={choice.steps}", f"checkpoint.every={choice.every}"]
    folder = ""
    if choice.local_every:
        words += [f"checkpoint.local_every={choice.local_every}", "checkpoint.local_path=/dev/shm"]
        folder = " --node-folder /dev/shm"
    in_place = " --no-restart-in-place" if choice.handling == "new pods" else ""
    every = " ".join(f"--set {word}" for word in (*settings, *choice.settings, *words, "data.path=DATA"))
    return [
        f"xpk cluster create NAME --project PROJECT --zone ZONE --tpu-type {choice.tpu_type} "
        f"--num-slices {choice.num_slices + choice.spares}{spot}",
        f"xpk workload create train --cluster NAME --num-slices {choice.num_slices} "
        f"--max-restarts {choice.max_restarts}{in_place}{folder} -- --config {config} {every}",
    ]


def with_details(choice: Choice, config: str, settings: Sequence[str]) -> Choice:
    """Return a choice with its commands, and with rounded numbers."""
    rounded = {
        name: round(getattr(choice, name), 3) for name in ("days", "dollars", "expected_days", "expected_dollars")
    }
    return dataclasses.replace(choice, commands=commands_of(choice, config, settings), **rounded)


def _date(start: datetime, days: float) -> str:
    try:
        return (start + timedelta(days=days)).isoformat(timespec="minutes")
    except OverflowError:
        return ""


def _is_within(choice: Choice, goal: Goal) -> bool:
    is_in_budget = goal.budget is None or choice.dollars_by(goal.rank_by) <= goal.budget
    if goal.by is None:
        return is_in_budget
    return is_in_budget and choice.days_by(goal.rank_by) <= (goal.by - goal.start).total_seconds() / _DAY


def _too_much(possible: Sequence[Choice], goal: Goal) -> CapacityError:
    """Return why no choice is within the limits."""
    if not possible:
        return CapacityError(
            "the step fits on none of the slices", hint="add larger types with --tpu-type, or raise --max-chips"
        )
    fastest = min(possible, key=lambda choice: choice.days_by(goal.rank_by))
    cheapest = min(possible, key=lambda choice: choice.dollars_by(goal.rank_by))
    limits = [f"by {goal.by.isoformat(timespec='minutes')}"] if goal.by else []
    limits += [f"for {goal.budget:,.0f} US dollars"] if goal.budget is not None else []
    return CapacityError(
        f"no slices train {goal.tokens:g} tokens {' and '.join(limits)}: "
        f"the fastest ({_words(fastest, goal)}), the cheapest ({_words(cheapest, goal)})",
        hint="allow more with --by, --budget or --max-chips",
    )


def _words(choice: Choice, goal: Goal) -> str:
    days, dollars = choice.days_by(goal.rank_by), choice.dollars_by(goal.rank_by)
    return f"{choice.num_slices} x {choice.tpu_type}: {days:,.1f} days, {dollars:,.0f} US dollars"
