"""Intervals of checkpoints that a run chooses itself: `checkpoint.every=auto`, and `checkpoint.local_every=auto`.

At some steps all hosts report what their saves cost. Process 0 plans the next saves from that, from the time of a step
and from the failures of the run, and announces the plan. All hosts follow it from the same step on. Of elastic slices,
the leading one plans, and its plan is part of each step's decisions.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.config import AUTO, Checkpoint
from trainer.hosts.job import Job
from trainer.hosts.measurements import BLOCKED, LOCAL_SAVE, RECOVERY, SAVE, STEP, Measurements
from trainer.hosts.run_record import PERIOD_SECONDS, RunRecord, Tally
from trainer.schedule import Action, RunSchedule, Schedule
from trainer.telemetry.metrics import say
from xpk_shared.goodput.auto import Bounds, Measured, choose_intervals, is_changed
from xpk_shared.goodput.failures import LOCAL_SHARE, PROCESS_SHARE, adaptive_mtbf
from xpk_shared.goodput.restarts import Tier

_FEW = 10  # steps from one plan to the next, at least, and while something is unknown
_RECENT = 20  # steps
_RECOVERY_SECONDS = 60.0  # until an attempt has measured it; the best interval hardly depends on it
Costs = Mapping[str, Sequence[float] | None]  # by kind of a save: seconds that steps wait, and until the commit


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Schedules of the saves in both tiers, the step of the next plan, and what they follow from."""

    save: Schedule
    local: Schedule
    next: int
    basis: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "Plan":
        """Return the plan that `dataclasses.asdict` has made a dictionary of."""
        return cls(Schedule(**value["save"]), Schedule(**value["local"]), value["next"], dict(value["basis"]))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Plans of the saves of a run."""

    settings: Checkpoint
    chips: int  # of all slices
    has_copies: bool = False  # True if replicas on other slices have the same state
    is_elastic: bool = False
    period_seconds: float = PERIOD_SECONDS  # from one plan to the next, at least

    @property
    def is_on(self) -> bool:
        """True if the run chooses an interval."""
        return AUTO in (self.settings.every, self.settings.local_every)

    def plan(self, former: Plan, at: int, *, step_seconds: float, costs: Costs, recovery: float, tally: Tally) -> Plan:
        """Return the plan after step `at`. `step_seconds` is 0 before a step is known.

        A tier whose cost is unknown is saved once at the next step, to measure it.
        """
        if not step_seconds:
            return dataclasses.replace(former, next=at + _FEW)
        tiers = {kind: Tier(save=cost[0], commit=cost[1]) for kind, cost in costs.items() if cost}
        measured = self._measured(step_seconds, tiers, recovery, tally)
        bounds = self._bounds(tally.run_seconds)
        chosen = choose_intervals(measured, bounds)
        most = max(1, math.floor(self.settings.auto_max_seconds / step_seconds))
        save, local, is_known = former.save, former.local, True
        if self.settings.every == AUTO:
            is_known &= chosen.every is not None
            save = self._changed(save, chosen.every, at, Schedule(most, first=at + 1))
        if self.settings.local_every == AUTO:
            is_known &= chosen.local_every is not None
            local = self._changed(local, chosen.local_every, at, Schedule(most, last=local.last, first=at + 2))
        steps = max(_FEW, round(self.period_seconds / step_seconds)) if is_known else _FEW
        return Plan(save, local, at + steps, _basis(measured, tally))

    def _measured(self, step_seconds: float, tiers: Mapping[str, Tier], recovery: float, tally: Tally) -> Measured:
        survives = PROCESS_SHARE + (1 - PROCESS_SHARE) * (LOCAL_SHARE if self.has_copies else 0.0)
        restores = tally.local_restores + tally.persistent_restores
        return Measured(
            step_seconds=step_seconds,
            persistent=tiers.get(SAVE),
            local=tiers.get(LOCAL_SAVE) if self.settings.local_every else None,
            failures_per_second=self._failures_per_second(tally),
            local_share=(survives + tally.local_restores) / (1 + restores),
            recovery_seconds=recovery,
            is_elastic=self.is_elastic,
        )

    def _failures_per_second(self, tally: Tally) -> float:
        """Return the rate of failures; of elastic slices, that at which all slices were lost.

        The prior is of chips: nothing is known about losses of all slices before the first one.
        """
        if self.is_elastic:
            return tally.failures / max(1.0, tally.run_seconds)
        chip_hours = tally.run_seconds * self.chips / 3600
        return self.chips / adaptive_mtbf(self.settings.mtbf_chip_hours, tally.failures, chip_hours) / 3600

    def _bounds(self, run_seconds: float) -> Bounds:
        """Return the bounds of the intervals, which are no longer than the run itself, in powers of two.

        New runs fail early, and the prior may be wrong by orders of magnitude. The few saves more cost little. With
        elastic slices the age does not matter: hardly a failure needs a checkpoint, and their rate has no prior.
        """
        settings = self.settings
        age = math.inf if self.is_elastic else 2.0 ** math.floor(math.log2(max(1.0, run_seconds)))
        return Bounds(
            every=None if settings.every == AUTO else settings.every,
            local_every=None if settings.local_every == AUTO else settings.local_every,
            max_seconds=min(settings.auto_max_seconds, age),
            max_share=settings.auto_max_share,
        )

    def _changed(self, former: Schedule, every: int | None, at: int, first_save: Schedule) -> Schedule:
        """Return the schedule with the chosen interval, or that of a first save if none can be chosen yet."""
        if every is None:
            return former if former.every else first_save
        return former.changed(every, at=at) if is_changed(former.every, every) else former


class IntervalTuner:
    """One host's part in the agreements on a plan, which `schedule` follows."""

    def __init__(self, job: Job, record: RunRecord, schedule: RunSchedule, planner: Planner) -> None:
        self._job, self._record, self._schedule, self._planner = job, record, schedule, planner
        saves = schedule.of(Action.SAVE), schedule.of(Action.SAVE_LOCALLY)
        self._plan = Plan(*saves, next=0)

    def agree(self, at: int) -> None:
        """Agree with all hosts on a plan after step `at`, if one is due; all of them call this after each step."""
        if not self._planner.is_on or at < self._plan.next:
            return
        job = self._job
        with job.watchdog.waiting(f"the hosts' agreement on checkpoint intervals after step {at}", at):
            job.peers.report("intervals", own_costs(job.measurements))
            if job.is_first:
                plan = self._make(at, largest_costs(job.peers.collect("intervals")))
                job.peers.announce("intervals", dataclasses.asdict(plan))
            self.adopt(job.peers.await_("intervals"), at)

    def decide(self, at: int) -> dict[str, Any] | None:
        """Return the plan for after step `at`, on the leading slice of elastic ones; None with fixed intervals."""
        if not self._planner.is_on:
            return None
        plan = self._plan if at < self._plan.next else self._make(at, own_costs(self._job.measurements))
        return dataclasses.asdict(plan)

    def adopt(self, value: Mapping[str, Any] | None, at: int) -> None:
        """Follow a plan that all hosts have agreed on."""
        if value is None:
            return
        former, self._plan = self._plan, Plan.of_json(value)
        self._schedule.replace(Action.SAVE, self._plan.save)
        self._schedule.replace(Action.SAVE_LOCALLY, self._plan.local)
        intervals = self._plan.save.every, self._plan.local.every
        if self._job.leads and intervals != (former.save.every, former.local.every):
            self._report(at)

    def _make(self, at: int, costs: Costs) -> Plan:
        measured = self._job.measurements
        steps, recoveries = measured.seconds(STEP)[-_RECENT:], measured.seconds(RECOVERY)
        return self._planner.plan(
            self._plan,
            at,
            step_seconds=statistics.median(steps) if steps else 0.0,
            costs=costs,
            recovery=statistics.median(recoveries) if recoveries else _RECOVERY_SECONDS,
            tally=self._record.tally(),
        )

    def _report(self, at: int) -> None:
        """Record the intervals in an event and a log line."""
        every, local_every = self._plan.save.every, self._plan.local.every
        basis = self._plan.basis
        self._job.events.write("intervals", at, every=every, local_every=local_every, **basis)
        local = f", checkpoint.local_every is {local_every}" if local_every else ""
        seconds = every * basis["step_seconds"]
        say(f"after step {at}: checkpoint.every is {every} ({seconds:.0f} s){local}")


def own_costs(measured: Measurements) -> dict[str, list[float] | None]:
    """Return what this host's saves cost: the median seconds that steps waited, and until the commit after that."""
    costs: dict[str, list[float] | None] = {}
    for kind in (SAVE, LOCAL_SAVE):
        whole, blocked = measured.seconds(kind), measured.seconds(kind + BLOCKED)
        commits = [max(0.0, all_ - wait) for all_, wait in zip(whole, blocked, strict=False)]
        costs[kind] = [statistics.median(blocked), statistics.median(commits)] if commits else None
    return costs


def largest_costs(reports: Sequence[Costs]) -> dict[str, list[float] | None]:
    """Return the costs of the slowest host, for which the others wait."""
    costs: dict[str, list[float] | None] = {}
    for kind in (SAVE, LOCAL_SAVE):
        known = [cost for report in reports if (cost := report[kind])]
        costs[kind] = [max(values) for values in zip(*known, strict=True)] if known else None
    return costs


def _basis(measured: Measured, tally: Tally) -> dict[str, Any]:
    """Return what a plan follows from, for its event; of elastic slices, failures are the losses of all of them."""
    tiers = {"save": measured.persistent, "local_save": measured.local}
    rate = measured.failures_per_second
    mtbf = {"mtbf_seconds": round(1 / rate, 1)} if rate else {}
    return {
        "step_seconds": round(measured.step_seconds, 4),
        **mtbf,
        "failures": tally.failures,
    } | {f"{name}_seconds": round(tier.save, 4) for name, tier in tiers.items() if tier}
