"""Traces from the ledger, which `xpk queue simulate --replay` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from tests.jobs.simulation.queues import CHIPS, NOW, TYPE, cluster
from xpk.jobs.simulation.estimates import STOP_SECONDS
from xpk.jobs.simulation.scenario import scenario_of
from xpk.jobs.simulation.trace import read_trace, replay
from xpk.jobs.usage.ledger import Ledger, assemble
from xpk.jobs.usage.trace import trace_of
from xpk.local.simulation import Course, Job, Simulation
from xpk.model import names
from xpk.model.usage import MICROSECONDS, Hold, State

BEGIN = 1_800_000_000


def hold(name: str, state: State, begin: float, end: float, **more: Any) -> Hold:
    """Return a hold of one slice from seconds after BEGIN."""
    first, last = ((BEGIN + time) * MICROSECONDS for time in (begin, end))
    values: dict[str, Any] = {"queue": names.QUEUE, "accelerator_type": TYPE, "created": round(first), **more}
    return Hold(
        uid=name, workload=name, namespace="default", team="default", user="", chips=CHIPS, state=state,
        begin=round(first), end=round(last), **values,
    )  # fmt: skip


def traced(ledger: Ledger, since: float, until: float) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a trace, and its assumptions."""
    trace = trace_of(ledger, round((BEGIN + since) * MICROSECONDS), round((BEGIN + until) * MICROSECONDS))
    return [json.loads(line) for line in trace.lines], "\n".join(trace.assumptions)


def holds_of(job: Job, course: Course, slices: int, namespace: str, queue: str) -> list[Hold]:
    """Return what the ledger has of a simulated workload that was not preempted."""
    assert course.end is not None and not course.stops
    more = {"queue": queue, "created": round((BEGIN + job.arrival) * MICROSECONDS)}
    start = course.starts[0].time
    parts = [(State.QUEUED, job.arrival, start), (State.START, start, start), (State.RUNNING, start, course.end)]
    return [
        Hold(**{**_fields(hold(job.uid, state, begin, end, **more)), "chips": slices * CHIPS, "namespace": namespace})
        for state, begin, end in parts
    ]


def _fields(one: Hold) -> Mapping[str, Any]:
    return {name: getattr(one, name) for name in Hold.__dataclass_fields__}


def test_hosts_that_end_one_after_the_other_leave_the_number_of_slices_as_it_was() -> None:
    """A local cluster records the chips of those that are still ending."""
    running = hold("w", State.RUNNING, 0, 100)
    last = Hold(**{**_fields(hold("w", State.STOP, 100, 110)), "chips": 1, "created": running.created})
    rows, assumptions = traced(assemble([running, last]), -10, 200)
    assert [(row["slices"], row["seconds"]) for row in rows] == [(1, 110)]
    assert "left out" not in assumptions


def test_a_replayed_trace_has_the_waits_of_the_week_that_it_was_made_from(tmp_path: Path) -> None:
    rng, scenario = Random(3), scenario_of(cluster(own=6, red=0), NOW)
    jobs, slices_of = list[Job](), dict[str, int]()
    for number in range(120):
        uid, slices = f"w{number:03}", rng.randint(1, 4)
        slices_of[uid] = slices
        needs = {f"{TYPE}/google.com/tpu": slices * CHIPS}
        seconds, arrival = float(rng.randint(60, 7200)), float(number * 1200)
        queue = names.CLUSTER_QUEUE
        jobs.append(Job(uid=uid, queue=queue, priority=500, needs=needs, seconds=seconds, arrival=arrival))
    courses = Simulation(scenario.queues, jobs, stop_seconds=STOP_SECONDS).run()
    records = [
        one for job in jobs for one in holds_of(job, courses[job.uid], slices_of[job.uid], "default", names.QUEUE)
    ]
    trace = trace_of(assemble(records), BEGIN * MICROSECONDS, (BEGIN + 400_000) * MICROSECONDS)
    file = tmp_path / "week.jsonl"
    file.write_text("\n".join(trace.lines))
    result = replay(*read_trace(file, scenario))
    (own,) = [queue for queue in result.replayed if queue.workloads]
    waits = sorted(courses[job.uid].starts[0].time - job.arrival for job in jobs)
    assert own.started == own.workloads == 120 and own.preemptions == 0
    assert own.wait_max == waits[-1] > 0 and own.wait_50 == waits[59]
    assert trace.assumptions == ("the ledger has no priorities: all workloads have the default, medium",)


def test_workloads_at_the_ends_of_the_interval() -> None:
    ledger = assemble(
        [
            hold("before", State.RUNNING, -500, -100),
            hold("early", State.RUNNING, -100, 50),
            hold("queued-early", State.QUEUED, -50, 20),
            hold("queued-early", State.RUNNING, 20, 30, created=(BEGIN - 50) * MICROSECONDS),
            hold("late", State.RUNNING, 90, 200),
            hold("waits", State.QUEUED, 60, 200),
            hold("canceled", State.QUEUED, 60, 70),
        ]
    )
    rows, assumptions = traced(ledger, 0, 100)
    assert [(row["name"], row["submit"], row["seconds"]) for row in rows] == [
        ("early", 0, 50),
        ("queued-early", 0, 10),
        ("waits", 60, 86400),
        ("late", 90, 10),
    ]
    assert "2 workloads also ran outside of the interval" in assumptions
    assert "1 queued workload: assumed to run for 1d" in assumptions
    assert "left out: 1 workload canceled while queued" in assumptions


def test_time_of_several_attempts_is_added_and_odd_workloads_are_left_out() -> None:
    parts = [(State.START, 0, 10), (State.RUNNING, 10, 40), (State.QUEUED, 40, 60), (State.RUNNING, 60, 70)]
    rows, assumptions = traced(
        assemble(
            [
                *(hold("again", state, begin, end, created=BEGIN * MICROSECONDS) for state, begin, end in parts),
                hold("direct", State.RUNNING, 0, 10, queue=""),
                hold("odd", State.RUNNING, 0, 10, accelerator_type="abacus"),
            ]
        ),
        0,
        100,
    )
    assert rows == [
        {"name": "again", "namespace": "default", "queue": names.QUEUE, "type": TYPE, "slices": 1, "submit": 0.0,
         "seconds": 50.0},
    ]  # fmt: skip
    assert "1 workload without a queue" in assumptions and "1 workload without a known accelerator type" in assumptions
    assert trace_of(assemble([]), 0, 1).lines == ()
