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


def test_a_loop_of_preemptions_is_found_and_left() -> None:
    # "big" may preempt what borrows, "small" takes back what was lent, and then "middle" fits and borrows again. Kueue
    # goes on forever if jobs need more than a second to stop.
    rules = {"cohort": "c", "reclaim": "Any", "while_borrowing": "LowerPriority"}
    jobs = [
        job("middle", 3, 30, priority=1, where="a"),
        job("small", 1, 30, where="a"),
        job("big", 4, 30, priority=2, where="b", arrival=1.0),
    ]
    simulation = Simulation({name: queue(2, **rules) for name in "ab"}, jobs, stop_seconds=5)
    outcome = simulation.run()
    assert simulation.loops == {("small", "big")}
    assert all(course.end is not None for course in outcome.values())


def test_what_others_were_preempted_for_is_first_in_its_queue() -> None:
    # "large" is stronger, but could not preempt: it needs more than its queue's own quota.
    queues = {"q": queue(4, cohort="c"), "lender": queue(2, cohort="c")}
    jobs = [
        job("running", 5, 100),
        job("large", 5, 10, priority=3, arrival=1.0),
        job("small", 2, 10, priority=2, arrival=2.0),
    ]
    outcome = courses(jobs, queues, stop_seconds=5)
    assert outcome["running"].stops == [(2, "small")]
    assert [outcome[name].starts[0].time for name in ("small", "large")] == [7, 17]


def test_what_others_were_preempted_for_starts_before_refused_ones_of_other_queues() -> None:
    # "owner" borrows nothing, so it would be first, but it was refused and waits until quota has been released.
    rules = {"cohort": "c", "reclaim": "LowerPriority", "while_borrowing": "LowerPriority"}
    queues = {"borrows": queue(1, **rules), "lends": queue(5, cohort="c")}
    jobs = [
        job("weak", 4, 100, priority=1, where="borrows"),
        job("owner", 3, 10, where="lends", arrival=1.0),
        job("strong", 4, 10, priority=2, where="borrows", arrival=2.0),
    ]
    outcome = courses(jobs, queues, stop_seconds=5)
    assert outcome["weak"].stops == [(2, "strong")]
    assert [outcome[name].starts[0].time for name in ("strong", "owner")] == [7, 17]


def test_a_preempting_job_has_no_quota_until_its_victims_have_stopped() -> None:
    # While "weak" stops, 1 of 4 is free: "later" of the lending queue gets it, and then "strong" does not fit any more.
    rules = {"cohort": "c", "reclaim": "Any", "while_borrowing": "LowerPriority"}
    queues = {"lends": queue(4, cohort="c", within_queue="Never"), "borrows": queue(0, **rules)}
    jobs = [
        job("weak", 2, 100, where="borrows"),
        job("ending", 1, 20, where="lends"),
        job("strong", 3, 100, priority=1, where="borrows", arrival=10.0),
        job("large", 3, 100, priority=2, where="lends", arrival=11.0),
        job("later", 1, 100, priority=1, where="lends", arrival=12.0),
    ]
    outcome = courses(jobs, queues, stop_seconds=5)
    assert outcome["weak"].stops[0] == (10, "strong")
    assert outcome["later"].starts[0].time == 12
    assert outcome["weak"].starts[1].time == 15 < outcome["strong"].starts[0].time


def test_a_job_may_be_preempted_as_soon_as_it_has_started() -> None:
    # "borrower" fits and "large" does not; then "small", which is next, takes back what its queue has just lent.
    queues = {"lends": queue(4, cohort="c", reclaim="Any", within_queue="Never"), "borrows": queue(0, cohort="c")}
    jobs = [
        job("running", 1, 100, where="lends"),
        job("ending", 3, 10, where="lends"),
        job("borrower", 3, 10, where="borrows", arrival=1.0),
        job("large", 4, 10, priority=1, where="lends", arrival=2.0),
        job("small", 3, 10, where="lends", arrival=3.0),
    ]
    outcome = courses(jobs, queues, stop_seconds=5)
    assert (outcome["borrower"].starts[0].time, outcome["borrower"].stops) == (10, [(10, "small")])
    assert outcome["small"].starts[0].time == 15


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
