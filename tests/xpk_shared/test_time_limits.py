"""Time limits from measured durations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xpk_shared.percentiles import percentile
from xpk_shared.time_limits import time_limit

DURATIONS = st.lists(st.floats(0, 1e6), max_size=200)
LIMITS = st.floats(0.1, 1e5)


def limit(seconds: list[float], start: float, floor: float, factor: float, enough: int) -> float:
    return time_limit(seconds, start=start, floor=floor, factor=factor, enough=enough)


@given(DURATIONS, LIMITS, LIMITS, st.floats(1, 50), st.integers(1, 100))
def test_a_limit_is_never_below_its_floor_nor_below_most_of_what_was_measured(
    seconds: list[float], start: float, floor: float, factor: float, enough: int
) -> None:
    result = limit(seconds, start, floor, factor, enough)
    if len(seconds) < enough:
        assert result == start
    else:
        assert result >= floor
        assert sum(result < value for value in seconds) <= len(seconds) / 100


@given(DURATIONS, LIMITS, st.floats(1, 50), st.integers(0, 199), st.floats(0, 1e6))
def test_a_longer_duration_never_shortens_a_limit(
    seconds: list[float], floor: float, factor: float, index: int, more: float
) -> None:
    longer = [value + more * (number == index) for number, value in enumerate(seconds)]
    assert limit(longer, floor, floor, factor, 1) >= limit(seconds, floor, floor, factor, 1)


@given(DURATIONS.filter(len), st.floats(1, 50))
def test_without_a_floor_the_limit_is_a_multiple_of_a_measured_duration(seconds: list[float], factor: float) -> None:
    assert limit(seconds, 300.0, 0.0, factor, 1) == factor * percentile(seconds, 99)
