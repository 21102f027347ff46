"""Time limits, backoff and the request budget."""

from __future__ import annotations

import math
import threading
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from xpk.api.timing import Backoff, Pace, seconds_left, time_limit, within


def test_nested_time_limits_both_apply() -> None:
    assert seconds_left() == math.inf
    with time_limit(60):
        with time_limit(3600):
            assert seconds_left() <= 60
        with time_limit(1):
            assert seconds_left() <= 1
        with time_limit(None):
            assert 50 < seconds_left() <= 60
    assert seconds_left() == math.inf


@given(first=st.floats(0.01, 10), longest=st.floats(10, 100), count=st.integers(1, 30))
def test_pauses_double_up_to_a_maximum_and_are_randomized(first: float, longest: float, count: int) -> None:
    backoff = Backoff(first, longest)
    pauses = [backoff.next() for _ in range(count)]
    for index, pause in enumerate(pauses):
        plain = min(first * 2**index, longest)
        assert plain <= pause <= 1.25 * plain + 1e-9
    backoff.reset()
    assert backoff.next() <= 1.25 * first


@given(gaps=st.lists(st.floats(0, 3), min_size=1, max_size=200))
@example(gaps=[0.0] * 30)
def test_a_retry_budget_is_respected_by_every_caller(gaps: list[float]) -> None:
    now = 0.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    pace = Pace(2.0, 10, pause, clock=lambda: now)
    taken: list[float] = []
    for gap in gaps:
        now += gap
        pace.take()
        taken.append(now)
    assert all(len([item for item in taken if item <= end]) <= 10 + 2 * end + 1e-6 for end in taken)


def test_tasks_that_time_out_are_abandoned_and_reported() -> None:
    never, message = threading.Event(), threading.Event()
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        within(0.2, never.wait, notice_after=0.05, notice=message.set)
    assert message.is_set() and time.monotonic() - begun < 5
    never.set()


def test_results_and_errors_of_tasks_are_passed_on() -> None:
    def fail() -> None:
        raise KeyError("x")

    assert within(5, lambda: 7, notice_after=10, notice=pytest.fail) == 7
    with pytest.raises(KeyError):
        within(5, fail, notice_after=1, notice=pytest.fail)
