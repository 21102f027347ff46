"""Table and document of a soak."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from e2e.machine import machine
from e2e.soak.faults import ELASTIC_KINDS, HOSTS_PER_SLICE, KINDS
from e2e.soak.injection import INTERVAL, Outcome
from e2e.soak.resources import Resources


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a soak. `differing`: steps with another loss than in the undisturbed run; None: not compared."""

    seed: int
    slices: int
    min_slices: int | None
    seconds: float
    outcomes: Sequence[Outcome]
    resources: Resources
    differing: Sequence[int] | None

    @property
    def survived(self) -> int:
        """Number of faults that the run survived."""
        return sum(outcome.survived for outcome in self.outcomes)

    @property
    def problems(self) -> list[str]:
        """Return lines that describe all problems."""
        lines = [
            f"fault {item.fault.number} ({item.fault.kind}): {item.reason}" for item in self.outcomes if item.reason
        ]
        if self.min_slices:
            lines += filter(None, (item.undone_too_much(self.slices) for item in self.outcomes))
        if self.differing is None:
            lines.append("losses were not compared with those of an undisturbed run")
        elif self.differing:
            lines.append(f"{len(self.differing)} steps have another loss, the first is {self.differing[0]}")
        return [*lines, *self.resources.grown()]


def differing_steps(finished: Iterable[Mapping[str, Any]], reference: Mapping[int, str]) -> list[int]:
    """Return the steps that have no loss, or whose loss ever differed from the reference, including undone steps."""
    lines = list(finished)
    last = max((line["step"] for line in lines), default=0)
    different = {line["step"] for line in lines if reference.get(line["step"]) != line["loss_hex"]}
    return sorted(different | set(range(1, last + 1)) - {line["step"] for line in lines})


def line(outcome: Outcome) -> str:
    """Return a line on one fault."""
    hosts = ", ".join(
        f"s{item.host // HOSTS_PER_SLICE}/h{item.host % HOSTS_PER_SLICE}" for item in outcome.fault.strikes
    )
    end = outcome.reason or f"{outcome.seconds:.1f} s, {'in place' if outcome.in_place else 'new pods'}"
    extra = f", {outcome.missed} signals missed" if outcome.missed else ""
    if outcome.stall_seconds is not None:
        extra = f", stall {outcome.stall_seconds:.1f} s, {outcome.lost_steps} steps lost{extra}"
    return f"{outcome.fault.number:4} {outcome.fault.kind} {hosts}: {end}, step {outcome.step}{extra}"


def table(result: Result) -> str:
    """Return a Markdown table by kind, and the rate."""
    head = ["kind", "count", "survived", "in place", "seconds (median)", "seconds (max)"]
    if result.min_slices:
        head += ["stall (median)", "stall (max)"]
    rows = []
    for kind in [*(ELASTIC_KINDS if result.min_slices else KINDS), "**all**"]:
        mine = [item for item in result.outcomes if kind in (item.fault.kind, "**all**")]
        seconds = [item.seconds for item in mine if item.seconds is not None]
        stalls = [item.stall_seconds for item in mine if item.stall_seconds is not None]
        series = [seconds, stalls] if result.min_slices else [seconds]
        times = [f"{of(values):.1f}" if values else "" for values in series for of in (statistics.median, max)]
        counts = [len(mine), sum(item.survived for item in mine), sum(item.in_place for item in mine)]
        if mine:
            rows.append([kind, *map(str, counts), *times])
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]
    total = len(result.outcomes)
    rate = 100 * result.survived / total if total else 0.0
    lines += ["", f"{result.survived} of {total} faults survived ({rate:.1f}%)"]
    if stall := stall_percentiles(result.outcomes):
        lines.append("stall: " + ", ".join(f"{name} {value:.2f} s" for name, value in stall.items()))
    return "\n".join(lines)


def stall_percentiles(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return p50, p99 and the maximum of the stalls in seconds; {} if slices are not elastic."""
    stalls = sorted(item.stall_seconds for item in outcomes if item.stall_seconds is not None)
    if not stalls:
        return {}
    at = {name: stalls[math.ceil(share * len(stalls)) - 1] for name, share in (("p50", 0.5), ("p99", 0.99))}
    return at | {"max": stalls[-1]}


def document(result: Result) -> dict[str, Any]:
    """Return the content of the output file."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "seed": result.seed,
        "min_slices": result.min_slices,
        "stall_seconds": stall_percentiles(result.outcomes),
        "size": {"slices": result.slices, "hosts_per_slice": HOSTS_PER_SLICE, "checkpoint_every_steps": INTERVAL},
        "seconds": round(result.seconds),
        "faults": len(result.outcomes),
        "survived": result.survived,
        "in_place": sum(item.in_place for item in result.outcomes),
        "steps": result.outcomes[-1].step if result.outcomes else 0,
        "steps_with_another_loss": None if result.differing is None else len(result.differing),
        "problems": result.problems,
        "resources": result.resources.longest(),
        "outcomes": [_entry(item) for item in result.outcomes],
    }


def _entry(outcome: Outcome) -> dict[str, Any]:
    strikes = [
        {
            **{
                "process": strike.target,
                "slice": strike.host // HOSTS_PER_SLICE,
                "host": strike.host % HOSTS_PER_SLICE,
            },
            **{"signal": strike.signal.name, "moment": strike.moment, "steps": strike.steps},
            "delay_seconds": strike.delay_seconds,
        }
        for strike in outcome.fault.strikes
    ]
    return {
        **{"number": outcome.fault.number, "kind": outcome.fault.kind, "strikes": strikes},
        **{"survived": outcome.survived, "seconds": outcome.seconds, "in_place": outcome.in_place},
        **{"attempts": outcome.attempts, "missed": outcome.missed, "step": outcome.step},
        **{"lost_steps": outcome.lost_steps, "stall_seconds": outcome.stall_seconds, "reason": outcome.reason},
    }
