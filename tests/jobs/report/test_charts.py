"""Axes, downsampling and the sparkline."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk.jobs.report.charts import NARROW, WIDE, Plot, Series, downsample, draw, number_ticks, time_ticks
from xpk.jobs.report.sparkline import sparkline
from xpk.jobs.report.wording import duration

_values = st.floats(-1e6, 1e6)


@given(st.lists(_values, max_size=400), st.integers(4, 60))
def test_downsampling_keeps_the_ends_the_extremes_and_the_order(values: list[float], limit: int) -> None:
    points = [(float(index), value) for index, value in enumerate(values)]
    kept = downsample(points, limit)
    assert len(kept) <= max(limit, 0)
    assert set(kept) <= set(points) and kept == sorted(kept)
    if points:
        assert kept[0] == points[0] and kept[-1] == points[-1]
        assert min(y for _, y in kept) == min(values) and max(y for _, y in kept) == max(values)


@given(_values, st.floats(1e-3, 1e6), st.integers(3, 12))
def test_ticks_lie_in_the_range_and_have_labels_of_their_own(low: float, span: float, most: int) -> None:
    ticks = number_ticks(low, low + span, most)
    assert 1 <= len(ticks) <= most + 1
    assert all(low - span * 1e-6 <= at <= (low + span) + span * 1e-6 for at, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


@pytest.mark.parametrize(
    ("span", "last"),
    [
        (0.5, "0.50 s"),
        (8, "8 s"),
        (86, "80 s"),
        (500, "8 min"),
        (7000, "105 min"),
        (86400 * 3, "72 h"),
        (86400 * 30, "30 d"),
    ],
)
def test_times_are_labeled_in_the_unit_that_fits(span: float, last: str) -> None:
    ticks = time_ticks(span, 10)
    assert len(ticks) <= 11
    assert ticks[-1][1] == last


def test_a_chart_stays_inside_its_frame() -> None:
    points = [(float(step), math.sin(step)) for step in range(5000)]
    for frame in (WIDE, NARROW):
        chart = draw(Plot(label="l", x_title="x", series=[Series("steps", points)]), frame)
        for pair in chart.lines[0].path[1:].split():
            x, y = map(float, pair.split(","))
            assert chart.left <= x <= chart.right and chart.top <= y <= chart.bottom


def test_overlapping_labels_are_omitted() -> None:
    plot = Plot(label="l", x_title="x", series=[Series("steps", [(0, 1), (100, 2)])], rules=[(10, "one"), (11, "two")])
    assert [rule.label for rule in draw(plot, WIDE).rules] == ["one", ""]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.34, "340 ms"),
        (0.99996, "1.00 s"),
        (9.8, "9.80 s"),
        (59.96, "1 min 0 s"),
        (83, "1 min 23 s"),
        (11520, "3 h 12 min"),
        (200_000, "2 d 7 h"),
        (-2, "−2.00 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sparkline() -> None:
    assert sparkline([]) == "" and sparkline([math.nan]) == ""
    assert sparkline([1, 1, 1]) == "▅▅▅"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, math.inf, 1]) == "█▁"
    assert len(sparkline(list(range(1000)), width=40)) == 40


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200), st.integers(1, 60))
def test_sparkline_accepts_any_values(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) <= width
