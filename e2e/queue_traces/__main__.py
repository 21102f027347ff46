"""Comparison of the simulated queue with Kueue itself, on random traces of workloads.

    eval "$(e2e/environment/up)"                 # once: etcd, kube-apiserver, Kueue
    python -m e2e.queue_traces --traces 500      # writes e2e-artifacts/queue-traces.md

A trace has up to three queues of a cohort with random quota, limits and rules of preemption. In each step, one workload
is submitted or ends; then both queues come to rest, and the admissions and preemptions of the step are compared. No pod
runs: this program plays the jobs, which end when they are preempted. A trace ends at its first difference, because
later ones follow from it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from e2e.api_server import missing
from e2e.queue_traces.kueue import Kueue, real_kueue
from e2e.queue_traces.traces import LOOP, STEP_SECONDS, Step, Trace, make_trace


def run_batch(kueue: Kueue, traces: Sequence[Trace], count: int) -> None:
    """Run traces side by side, step by step."""
    kueue.add(traces)
    for at in range(count):
        active = [trace for trace in traces if not trace.cause]
        actions = []
        for trace in active:
            trace.preempted.clear()
            trace.ran = frozenset(trace.running)
            ends = _ending(trace, trace.steps[at])
            if ends:
                trace.simulation.end(trace.uids[ends], at * STEP_SECONDS)
            actions.append((trace, trace.steps[at], ends))
        kueue.carry_out(actions)
        for trace in active:
            trace.simulation.run(until=(at + 0.9) * STEP_SECONDS)
            _compare(trace, at)
    kueue.remove(traces)


def _ending(trace: Trace, step: Step) -> str:
    """Return the workload that ends in a step, "" if none does."""
    running = sorted(trace.running)
    return "" if step.name or not running else running[int(step.choice * len(running))]


def _compare(trace: Trace, at: int) -> None:
    """Record the difference between Kueue and the simulation after a step."""
    names = {uid: name for name, uid in trace.uids.items()}
    simulated = {names[uid] for uid in trace.simulation.running}
    begin = at * STEP_SECONDS
    stops = sorted(
        names[uid]
        for uid, course in trace.simulation.courses.items()
        for time_, _ in course.stops
        if begin <= time_ < begin + STEP_SECONDS
    )
    preempted = sorted(trace.preempted)
    trace.compared += 1
    trace.preemptions += len(preempted)
    if trace.simulation.loops or len(preempted) >= LOOP:
        is_both = bool(trace.simulation.loops) and len(preempted) >= LOOP
        trace.difference = "" if is_both else f"step {at}: {_pair(preempted, stops)} preempted"
        trace.cause = "both preempt in a loop" if is_both else "only one preempts in a loop"
        if is_both:
            return  # how often is a matter of time
    elif simulated != trace.running or stops != preempted:
        trace.difference = f"step {at}: {_pair(trace.running, simulated)} running; {_pair(preempted, stops)} preempted"
        trace.cause = _cause(trace, simulated, preempted, stops)
    _count(trace, simulated, preempted, stops)


def _count(trace: Trace, simulated: set[str], preempted: Sequence[str], stops: Sequence[str]) -> None:
    """Count the decisions of a step."""
    on_kueue = Counter([*preempted, *(f"admit {name}" for name in trace.running - trace.ran)])
    expected = Counter([*stops, *(f"admit {name}" for name in simulated - trace.ran)])
    trace.equal += (on_kueue & expected).total()
    trace.decisions += (on_kueue | expected).total()


def _cause(trace: Trace, simulated: set[str], preempted: Sequence[str], stops: Sequence[str]) -> str:
    """Return why Kueue may have decided differently.

    It orders victims of one priority and second by random UIDs. Quota of several victims is released in turn: one may
    start again, and be preempted again, before the rest has stopped.
    """
    if simulated == trace.running and {*preempted} == {*stops}:
        return "preempted twice, same result"
    step_of = {step.name: step for step in trace.steps if step.name}
    only = {*preempted} ^ {*stops}
    priorities = {step_of[name].priority for name in only}
    courses = [trace.simulation.courses[trace.uids[name]] for name in only]
    starts = {start.time // STEP_SECONDS for course in courses for start in course.starts[-2:]}
    return "victims of one second" if only and len(priorities) == 1 and len(starts) < 2 * len(only) else "unexplained"


def _pair(kueue: Sequence[str] | set[str], simulated: Sequence[str] | set[str]) -> str:
    return f"Kueue {_short(kueue)}, simulation {_short(simulated)}"


def _short(names: Sequence[str] | set[str]) -> str:
    return ", ".join(sorted(name.partition("-")[2] for name in names)) or "none"


def share_of(traces: Sequence[Trace]) -> tuple[int, int]:
    """Return the number of decisions that are equal, and of all."""
    return sum(trace.equal for trace in traces), sum(trace.decisions for trace in traces)


def table(traces: Sequence[Trace], seconds: float) -> str:
    """Return the result as Markdown."""
    equal, decisions = share_of(traces)
    equal_traces = sum(not trace.difference for trace in traces)
    steps, preemptions = (sum(getattr(trace, of) for trace in traces) for of in ("compared", "preemptions"))
    lines = [
        "# Traces on the simulated queue and on Kueue",
        "",
        f"{equal:,} of {decisions:,} admissions and preemptions are equal ({100 * equal / max(1, decisions):.2f} %); "
        f"{equal_traces} of {len(traces)} traces are: {steps:,} steps with {preemptions} preemptions, {seconds:.0f} s, "
        f"{datetime.now(UTC):%Y-%m-%d}.",
        "",
        "| trace | difference | cause |",
        "|---|---|---|",
    ]
    lines += [f"| {trace.number} | {trace.difference} | {trace.cause} |" for trace in traces if trace.difference]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run traces and write the table; return 1 if fewer than the required share of decisions are equal."""
    parser = argparse.ArgumentParser(prog="python -m e2e.queue_traces", description=__doc__)
    parser.add_argument("--traces", type=int, default=500, help="[default: 500]")
    parser.add_argument("--steps", type=int, default=12, help="of each trace [default: 12]")
    parser.add_argument("--seed", type=int, default=1, help="[default: 1]")
    parser.add_argument("--at-once", type=int, default=125, help="traces side by side [default: 125]")
    parser.add_argument("--required", type=float, default=0.99, help="share of equal decisions [default: 0.99]")
    parser.add_argument("--output", type=Path, default=Path("e2e-artifacts/queue-traces.md"), help="file of the table")
    options = parser.parse_args()
    if why := missing("etcd", "kube-apiserver", "jobset", "kueue"):
        print(f"error: {why}", file=sys.stderr)
        return 1
    traces = [make_trace(number, options.seed, options.steps) for number in range(options.traces)]
    with tempfile.TemporaryDirectory(prefix="xpk-traces-") as folder, real_kueue(Path(folder)) as kueue:
        began = time.monotonic()
        for first in range(0, len(traces), options.at_once):
            batch = traces[first : first + options.at_once]
            run_batch(kueue, batch, options.steps)
            unequal = sum(bool(trace.difference) for trace in batch)
            print(f"{first + len(batch)} traces, {unequal} differ, {time.monotonic() - began:.0f} s", file=sys.stderr)
        text = table(traces, time.monotonic() - began)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")
    print(text, end="")
    equal, decisions = share_of(traces)
    return int(equal < options.required * decisions)


if __name__ == "__main__":
    sys.exit(main())
