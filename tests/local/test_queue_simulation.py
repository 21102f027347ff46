"""The queue in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk.local.ledger import Queue
from xpk.local.simulation import Course, Job, Simulation, Start
from xpk.model.quotas import Allotment


def queue(nominal: int, **rules: str) -> Queue:
    return Queue(allotments={"tpu": Allotment(nominal=nominal)}, **rules)


def job(uid: str, tpus: int, seconds: float, *, priority: int = 0, where: str = "q", **more: float | bool) -> Job:
    return Job(uid=uid, queue=where, priority=priority, needs={"tpu": tpus}, seconds=seconds, **more)  # type: ignore[arg-type]


def courses(jobs: list[Job], queues: dict[str, Queue] | None = None, stop_seconds: float = 0.0) -> dict[str, Course]:
    return dict(Simulation(queues or {"q": queue(2)}, jobs, stop_seconds=stop_seconds).run())


def test_a_job_starts_when_a_running_one_ends() -> None:
    outcome = courses([job("a", 2, 60, reserved=-10), job("b", 1, 30), job("c", 2, 5)])
    assert outcome["a"] == Course(starts=[Start(-10)], end=60)
    assert outcome["b"].starts == [Start(60, after=("a",))]
    assert outcome["c"].starts == [Start(90, after=("b",))] and outcome["c"].end == 95


def test_a_job_may_arrive_later() -> None:
    outcome = courses([job("a", 2, 10, arrival=5.0), job("b", 2, 10, arrival=7.0)])
    assert (outcome["a"].starts, outcome["b"].starts) == ([Start(5)], [Start(15, after=("a",))])


def test_a_preempted_job_stops_waits_and_continues() -> None:
    jobs = [job("a", 2, 100, reserved=0.0), job("b", 1, 50, priority=1, arrival=40.0)]
    outcome = courses(jobs, stop_seconds=3)
    assert outcome["a"].stops == [(40, "b")]
    assert outcome["b"].starts == [Start(43, after=("a",), preempted=("a",))]
    assert outcome["a"].starts[-1] == Start(93, after=("b",))
    assert outcome["a"].end == 153  # 40 of 100 seconds were before


def test_a_job_that_was_told_to_stop_waits_afterwards() -> None:
    outcome = courses([job("a", 2, 100, leaves=True), job("b", 2, 10, priority=1)], stop_seconds=20)
    assert (outcome["b"].starts[0].time, outcome["a"].starts[0].time) == (20, 30)


def test_a_job_that_never_fits_waits_with_what_it_lacks() -> None:
    outcome = courses([job("a", 3, 10)])
    assert outcome["a"].starts == [] and outcome["a"].lacks == {"tpu": 1}


def test_ends_of_another_cohort_are_no_cause() -> None:
    queues = {"q": queue(1), "other": queue(1)}
    jobs = [job("a", 1, 10, reserved=0.0), job("b", 1, 10, reserved=0.0, where="other"), job("c", 1, 10)]
    assert courses(jobs, queues)["c"].starts == [Start(10, after=("a",))]


def test_the_simulation_ends_once_the_awaited_have_started() -> None:
    simulation = Simulation({"q": queue(1)}, [job("a", 1, 10), job("b", 1, 10), job("c", 1, 10)])
    simulation.run(awaited=["b"])
    assert simulation.now == 10


def test_contradicting_rules_of_preemption_come_to_rest() -> None:
    # "big" may preempt what borrows, "small" takes back what was lent, and then "middle" fits and borrows again. As on
    # Kueue, "big" is considered again only once one of them has ended.
    rules = {"cohort": "c", "reclaim": "Any", "while_borrowing": "LowerPriority"}
    jobs = [
        job("middle", 3, 30, priority=1, where="a"),
        job("small", 1, 30, where="a"),
        job("big", 4, 30, priority=2, where="b", arrival=1.0),
    ]
    simulation = Simulation({name: queue(2, **rules) for name in "ab"}, jobs, stop_seconds=5)
    outcome = simulation.run()
    assert (outcome["small"].starts[-1].time, outcome["middle"].starts[-1].time) == (6, 6)
    assert outcome["big"].starts[-1].after == ("small", "middle") and not simulation.loops


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 50), st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 60)),
        max_size=12,
    ),
    st.sampled_from([0.0, 5.0]),
)
def test_every_job_that_can_fit_ends_after_its_own_time(
    drawn: list[tuple[int, int, int, str, int]], stop_seconds: float
) -> None:
    rules = {"cohort": "c", "reclaim": "Any", "while_borrowing": "LowerPriority"}
    jobs = [
        job(f"{number:02d}", tpus, seconds, priority=priority, where=where, arrival=float(arrival))
        for number, (tpus, seconds, priority, where, arrival) in enumerate(drawn)
    ]
    simulation = Simulation({name: queue(2, **rules) for name in "ab"}, jobs, stop_seconds=stop_seconds)
    outcome = simulation.run()
    for each in jobs:
        course = outcome[each.uid]
        assert course.end is not None and len(course.starts) == len(course.stops) + 1
        ends = [*(time for time, _ in course.stops), course.end]
        ran = sum(end - start.time for start, end in zip(course.starts, ends, strict=True))
        assert ran == pytest.approx(each.seconds)
