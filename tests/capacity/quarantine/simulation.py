"""Simulation of quarantine by evidence, on the functions that decide; writes the figures of docs/host-health.md.

python -m tests.capacity.quarantine.simulation [--write]
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.capacity.quarantine.faults import FAULTS, OF_HOSTS, Fault, Place, Report
from xpk.api.text import rfc3339
from xpk.capacity.quarantine.verdict import Budget, SliceState, judge
from xpk.jobs.evidence import failure_kind
from xpk.model.evidence import Evidence, EvidenceKind

SEEDS = 20
PAGE = Path(__file__).parents[3] / "docs" / "host-health.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
START = datetime(2026, 1, 5, tzinfo=UTC)
SLICES, HOSTS = 40, 4  # of the cluster, and of a slice
MAX_ATTEMPTS = 12
WEEKS = 1000
_NOISE = 0.01  # probability that an attempt ends by a SIGSEGV of any host instead


@dataclass
class Outcome:
    """Result of a run: failures of each bad node until its slice was out, and innocent nodes blamed."""

    attempts_until_out: list[int | None] = field(default_factory=list)
    innocent: int = 0
    host_restarts: int = 0


class Run:
    """One workload on a simulated cluster, restarted until its fault is gone or the attempts are used up."""

    def __init__(self, fault: Fault, seed: int) -> None:
        self._fault, self._random = fault, random.Random(f"{fault.name}/{seed}")
        self._now, self._evidence = START, list[Evidence]()
        self._slices = self._random.sample(range(SLICES), fault.slices)  # of the cluster, by slice of the workload
        self._quarantined: set[int] = set()
        places = [(index, host) for index in range(fault.slices) for host in range(HOSTS)]
        self._bad = {self._node(place): 0 for place in self._random.sample(places, fault.bad_hosts)}  # failures
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Return the outcome."""
        left = dict(self._bad)
        for number in range(MAX_ATTEMPTS):
            if self._fault.bad_hosts and not left:
                break
            self._attempt(number, left)
            for node in self._judge():
                if node in left:
                    self.outcome.attempts_until_out.append(self._bad[node])
                    del left[node]
                elif node not in self._bad:
                    self.outcome.innocent += 1
        self.outcome.attempts_until_out += [None] * len(left)
        return self.outcome

    def _attempt(self, number: int, left: dict[str, int]) -> None:
        """Run an attempt, and collect the evidence that its end leaves."""
        self._now += timedelta(hours=self._random.uniform(0.2, 12))
        self.outcome.host_restarts += self._fault.slices * HOSTS
        size = (self._fault.slices, HOSTS)
        bad = [(index, host) for index in range(size[0]) for host in range(HOSTS) if self._node((index, host)) in left]
        reports = self._fault.attempt(self._random, bad, size, number)
        if self._random.random() < _NOISE:
            reports = [Report((self._random.randrange(size[0]), self._random.randrange(HOSTS)), 139, "SIGSEGV")]
        for node in {self._node(report.place) for report in reports} & left.keys():
            if any(self._tells(report) for report in reports if self._node(report.place) == node):
                self._bad[node] += 1
        self._evidence += [one for report in reports if (one := self._read(report, number))]

    @staticmethod
    def _tells(report: Report) -> bool:
        return report.observed is not None or failure_kind(report.code, report.cause) is not None

    def _read(self, report: Report, number: int) -> Evidence | None:
        """Return the evidence of a report, as xpk collects it."""
        kind = report.observed or failure_kind(report.code, report.cause)
        if kind is None:
            return None
        is_of_node = kind in (EvidenceKind.PROBLEM, EvidenceKind.WARNING)
        return Evidence(
            node=self._node(report.place),
            kind=kind,
            time=rfc3339(self._now),
            source="node" if is_of_node else "lm",
            number=str(kind) if is_of_node else str(number),
            message=report.cause,
            place="" if report.observed else "s{}/h{}".format(*report.place),
            hosts=self._fault.slices * HOSTS,
            share=0.5 if kind is EvidenceKind.COPIES and self._fault.slices == 2 else 1.0,
        )

    def _judge(self) -> list[str]:
        """Quarantine slices, move the workload off them, and return the nodes because of which this was done."""
        states = [
            _state(number, is_idle=number not in self._slices, is_quarantined=number in self._quarantined)
            for number in range(SLICES)
        ]
        nodes = []
        for verdict in judge(states, self._evidence, self._now):
            if verdict.action != "quarantine":
                continue
            number = int(verdict.slice)
            self._quarantined.add(number)
            nodes.append(verdict.node)
            if number in self._slices:
                free = [other for other in range(SLICES) if other not in {*self._quarantined, *self._slices}]
                self._slices[self._slices.index(number)] = self._random.choice(free)
        return nodes

    def _node(self, place: Place) -> str:
        return f"n{self._slices[place[0]]}-{place[1]}"


def _state(number: int, *, is_idle: bool, is_quarantined: bool) -> SliceState:
    return SliceState(
        name=str(number),
        accelerator_type="v5litepod-16",
        nodes=tuple(f"n{number}-{host}" for host in range(HOSTS)),
        is_idle=is_idle and not is_quarantined,
        is_quarantined=is_quarantined,
    )


@dataclass(frozen=True)
class Weeks:
    """A simulated time of many weeks: quarantines, deferrals, and violations of the limits."""

    quarantines: int
    deferrals: int
    most: int
    beyond_budget: int
    last_free: int


def live_for_weeks(seed: int, weeks: int, *, slices: int = SLICES, percent: float = 5.0) -> Weeks:
    """Return what happens on a cluster whose hosts fail often, and return to service one to three weeks later."""
    r, budget = random.Random(seed), Budget(percent)
    evidence, until = list[Evidence](), dict[int, int]()
    counts = {"quarantine": 0, "defer": 0, "most": 0, "beyond": 0, "last": 0}
    for day in range(weeks * 7):
        now = START + timedelta(days=day)
        for number in [number for number, end in until.items() if end <= day]:
            del until[number]
            evidence = [one for one in evidence if not one.node.startswith(f"n{number}-")]
        evidence = [one for one in evidence if one.number > str(day - 60).zfill(6)]
        for _ in range(r.choice((0, 0, 1, 2, 8))):
            node = f"n{r.randrange(slices)}-{r.randrange(HOSTS)}"
            kind = r.choice((EvidenceKind.PROBLEM, EvidenceKind.CHIPS, EvidenceKind.WARNING))
            stamp = str(day).zfill(6)
            evidence.append(Evidence(node=node, kind=kind, time=rfc3339(now), source="node", number=stamp, message=""))
        free = set(r.sample(range(slices), r.randrange(6)))
        states = [_state(n, is_idle=n in free, is_quarantined=n in until) for n in range(slices)]
        idle = len(free - until.keys())
        for verdict in judge(states, evidence, now, budget):
            counts[verdict.action] += 1
            if verdict.action == "quarantine":
                counts["last"] += idle - (int(verdict.slice) in free) < 1
                idle -= 1
                until[int(verdict.slice)] = day + r.randrange(7, 22)
        counts["most"] = max(counts["most"], len(until))
        counts["beyond"] += len(until) > budget.slices(slices)
    return Weeks(counts["quarantine"], counts["defer"], counts["most"], counts["beyond"], counts["last"])


def figures() -> dict[str, Outcome]:
    """Return the outcomes of all kinds of faults, those of all seeds together."""
    result = {}
    for fault in FAULTS:
        total = result[fault.name] = Outcome()
        for seed in range(SEEDS):
            outcome = Run(fault, seed).run()
            total.attempts_until_out += outcome.attempts_until_out
            total.innocent += outcome.innocent
            total.host_restarts += outcome.host_restarts
    return result


def share_out_in_time(outcomes: dict[str, Outcome], attempts: int = 2) -> float:
    """Return the share of bad hosts that are out after so many failures, of all faults that can be decided."""
    numbers = [number for fault in OF_HOSTS for number in outcomes[fault.name].attempts_until_out]
    return sum(number is not None and number <= attempts for number in numbers) / len(numbers)


def share_of_innocents(outcomes: dict[str, Outcome]) -> float:
    """Return the number of innocent hosts because of which a slice was quarantined, for each restart of a host."""
    return sum(one.innocent for one in outcomes.values()) / sum(one.host_restarts for one in outcomes.values())


def page(outcomes: dict[str, Outcome], weeks: Weeks) -> str:
    """Return the figures as Markdown."""
    lines = [
        f"Simulated: {len(FAULTS)} kinds of faults, {SEEDS} seeds each, a workload of 8 slices (where not stated "
        f"otherwise) on {SLICES} slices of {HOSTS} hosts, up to {MAX_ATTEMPTS} attempts.",
        "",
        f"- Bad hosts out after at most two failures: {share_out_in_time(outcomes):.1%}.",
        f"- Innocent hosts because of which a slice was quarantined: {share_of_innocents(outcomes):.3%} of the "
        "restarts of hosts.",
        f"- {WEEKS:,} weeks on {SLICES} slices whose hosts fail often: {weeks.quarantines:,} quarantines, "
        f"{weeks.deferrals:,} deferrals, at most {weeks.most} slices in quarantine at a time (budget "
        f"{Budget().slices(SLICES)}); {weeks.beyond_budget} times beyond the budget, {weeks.last_free} times the last "
        "free slice.",
        "",
        "| fault | bad hosts | out after at most 2 failures | failures at most | innocent hosts |",
        "|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        outcome = outcomes[fault.name]
        numbers = outcome.attempts_until_out
        known = [number for number in numbers if number is not None]
        in_time = f"{sum(number <= 2 for number in known) / len(numbers):.0%}" if numbers else "–"
        worst = "–" if not numbers else "never" if len(known) < len(numbers) else str(max(known))
        lines.append(f"| {fault.name} | {len(numbers)} | {in_time} | {worst} | {outcome.innocent} |")
    return "\n".join(lines)


def main() -> None:
    """Print the figures; with --write, put them into the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()
    text = page(figures(), live_for_weeks(0, WEEKS))
    if arguments.write:
        head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
