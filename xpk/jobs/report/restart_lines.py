"""Table of restarts of the report: those that the hosts recorded, with the control plane's reports of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xpk.jobs.report.curves import Run, failure_time
from xpk.jobs.report.goodput import Attempt
from xpk.jobs.report.slice_losses import SliceLoss
from xpk.jobs.report.wording import duration


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartFact:
    """One restart as reported by the control plane. `time` is Unix seconds."""

    cause: str
    time: float | None = None
    slice: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLine:
    """One line of the table of restarts. `cause`: as reported by the hosts, `reported`: by the control plane."""

    number: int
    when: str
    cause: str
    reported: str
    host: str
    resumed: str
    lost: str
    recovery: str


_NEAR = 60.0  # maximum seconds between the control plane's time of a restart and the hosts'


def _reports(
    attempts: Sequence[Attempt], facts: Sequence[RestartFact]
) -> tuple[list[RestartFact | None], list[RestartFact]]:
    """Return the control plane's report of each ending but the last, and its remaining reports.

    It reports only restarts, and only since the workload was last created. A report is assigned by its time;
    without one, to the first ending that has none.
    """
    reports: list[RestartFact | None] = [None] * max(0, len(attempts) - 1)
    others = []
    for fact in facts:
        free = [index for index, known in enumerate(reports) if known is None and not attempts[index].waiting]
        if (time := fact.time) is not None:
            away = {index: max(attempts[index].last_work - time, time - attempts[index + 1].start) for index in free}
            free = sorted((index for index in free if away[index] < _NEAR), key=lambda index: max(0.0, away[index]))
        if free:
            reports[free[0]] = fact
        else:
            others.append(fact)
    return reports, others


def _host(failed: Attempt | None) -> str:
    """Return the host that ended an attempt, in words."""
    if failed is not None and failed.waiting:
        return "all"
    return str(failed.cause_host or "unknown") if failed else "unknown"


def restart_lines(run: Run, facts: Sequence[RestartFact]) -> list[RestartLine]:
    """Return the restarts of the job and those of single slices, numbered in the order of time."""
    if not run.losses:
        return _of_job(run, facts)
    left, lines = list(facts), list[tuple[float, RestartLine]]()
    for loss in run.losses:
        fact = _report_of(loss, left)
        if fact is not None:
            left.remove(fact)
        lines.append((loss.since - run.origin, _of_slice(run, loss, fact)))
    ends = [failure_time(run, attempt) for attempt in run.attempts[:-1]]
    others = [(fact.time or run.origin) - run.origin for fact in _reports(run.attempts, left)[1]]
    lines += zip([*ends, *others], _of_job(run, left), strict=True)
    ordered = sorted(lines, key=lambda pair: pair[0])
    return [replace(line, number=number) for number, (_, line) in enumerate(ordered, start=1)]


def _report_of(loss: SliceLoss, facts: Sequence[RestartFact]) -> RestartFact | None:
    """Return the control plane's report of the loss of a slice, the nearest in time."""
    near = [
        (abs(fact.time - loss.since), index)
        for index, fact in enumerate(facts)
        if fact.slice == loss.slice and fact.time is not None and abs(fact.time - loss.since) < _NEAR
    ]
    return facts[min(near)[1]] if near else None


def _of_slice(run: Run, loss: SliceLoss, fact: RestartFact | None) -> RestartLine:
    return RestartLine(
        number=0,
        when=f"after {duration(loss.since - run.origin)}",
        cause=f"{loss.reason or 'unknown'}; the other slices continued",
        reported=fact.cause if fact else "",
        host=str(loss.host) if loss.host else f"slice {loss.slice}",
        resumed="" if loss.joined_step is None else f"step {loss.joined_step:,} of the other slices",
        lost="0",
        recovery="" if loss.until is None else duration(loss.until - loss.since),
    )


def _of_job(run: Run, facts: Sequence[RestartFact]) -> list[RestartLine]:
    """Return the restarts of the whole job, and the reports of others."""
    by_failed = {recovery.failed_attempt: recovery for recovery in run.recoveries}
    lines = []
    reports, others = _reports(run.attempts, facts)
    pairs = [(*pair, fact) for pair, fact in zip(itertools.pairwise(run.attempts), reports, strict=True)]
    for number, (failed, after, fact) in enumerate([*pairs, *((None, None, fact) for fact in others)], start=1):
        recovery = by_failed.get(failed.number) if failed else None
        when = failure_time(run, failed) if failed else (fact.time - run.origin if fact and fact.time else None)
        reached, restored = (failed.last_step or 0) if failed else 0, after.restored_step if after else None
        lines.append(
            RestartLine(
                number=number,
                when="" if when is None else f"after {duration(when)}",
                cause=failed.reason if failed and failed.reason else "unknown",
                reported=fact.cause if fact else "",
                host=_host(failed),
                resumed="" if restored is None else f"step {restored:,}" if restored else "the beginning",
                lost="" if restored is None else f"{max(0, reached - restored):,}",
                recovery=duration(recovery.seconds) if recovery else "",
            )
        )
    return lines
