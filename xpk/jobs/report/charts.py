"""Geometry of the report's charts: from numbers to positions in an SVG.

All positions are computed here, in viewBox units from the top left; the template only draws them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

MAX_POINTS = 2_000
_MAX_HOVER_POINTS = 300
_LETTER = 7.0  # approximate width of a letter of 12 px
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Tick:
    """One label of an axis, at a position along it."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """A polyline: the `d` of an SVG path, and its meaning as a CSS class."""

    meaning: str
    path: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A highlighted point; `title` is its tooltip."""

    meaning: str
    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A vertical line over the whole chart with a label at its top; `anchor` selects the side with room."""

    x: float
    label: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Band:
    """A vertical band over the whole chart; `label` is empty if it does not fit."""

    x: float
    width: float
    title: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawn chart. The plot lies inside `left`, `right`, `top` and `bottom`; `hover` is JSON.

    `summary` describes it for screen readers.
    """

    size: str
    label: str
    summary: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_title: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...]
    rules: tuple[Rule, ...]
    bands: tuple[Band, ...]
    hover: str


@dataclass(frozen=True, slots=True)
class Series:
    """A curve in data units."""

    meaning: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Content of a chart in data units. `times`: x is in seconds, otherwise in whole steps. `counts`: y is whole.

    `marks` are (meaning, x, y, title), `rules` (x, label), `bands` (begin, end, label, title), `hover`
    (x, y, text).
    """

    label: str
    x_title: str
    times: bool = False
    counts: bool = False
    series: Sequence[Series] = ()
    marks: Sequence[tuple[str, float, float, str]] = ()
    rules: Sequence[tuple[float, str]] = ()
    bands: Sequence[tuple[float, float, str, str]] = ()
    hover: Sequence[tuple[float, float, str]] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """Outer size of a chart, wide for desktops and narrow for phones, and its maximum number of points."""

    size: str
    width: float
    height: float
    points: int = MAX_POINTS
    hover_points: int = _MAX_HOVER_POINTS


WIDE = Frame("wide", 1096, 330)
NARROW = Frame("narrow", 420, 270)
HALF = Frame("wide", 536, 190)
LOW = Frame("narrow", 420, 190)


def downsample(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Return at most `limit` (4 or more) of the points: both ends, and the extremes in y of equal shares."""
    if len(points) <= limit:
        return list(points)
    inner = points[1:-1]
    shares = (limit - 2) // 2
    sampled = [points[0]]
    for share in range(shares):
        part = inner[share * len(inner) // shares : (share + 1) * len(inner) // shares]
        if part:
            lowest = min(range(len(part)), key=lambda index: part[index][1])
            highest = max(range(len(part)), key=lambda index: part[index][1])
            sampled += [part[index] for index in sorted({lowest, highest})]
    return [*sampled, points[-1]]


def nice_step(span: float, max_parts: int) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that divides `span` into at most `max_parts` parts."""
    if span <= 0 or not math.isfinite(span):
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / max_parts))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor * max_parts >= span * (1 - 1e-9))


def number_ticks(low: float, high: float, max_ticks: int, *, whole: bool = False) -> list[tuple[float, str]]:
    """Return round values in [low, high] with labels of the fewest sufficient digits."""
    step = nice_step(high - low, max_ticks)
    if whole:
        step = max(1.0, step)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(index * step, f"{index * step:,.{digits}f}") for index in range(first, last + 1)]


_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)


def time_ticks(span: float, max_ticks: int) -> list[tuple[float, str]]:
    """Return round times from 0 to `span` seconds, labeled in the largest whole unit of s, min, h and d."""
    if span < max_ticks:
        return [(at, f"{label} s") for at, label in number_ticks(0, span, max_ticks)]
    fitting = (step for step in _TIME_STEPS if step * max_ticks >= span)
    step = next(fitting, 86400 * max(1, math.ceil(span / max_ticks / 86400)))
    unit, name = next(
        (unit, name) for unit, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")) if step % unit == 0
    )
    return [(index * step, f"{index * step // unit} {name}") for index in range(int(span // step) + 1)]


def draw(plot: Plot, frame: Frame) -> Chart:
    """Lay a plot out in a frame."""
    left, right = 52.0, frame.width - 14
    top, bottom = (26.0 if plot.rules else 12.0), frame.height - 42
    x_low, x_high = _x_range(plot)
    y_low, y_high = _y_range(plot)

    def x(value: float) -> float:
        """Return the position of a step or a time, in viewBox units from the left."""
        return round(left + (value - x_low) / (x_high - x_low) * (right - left), 1)

    def y(value: float) -> float:
        """Return the position of a value, in viewBox units from the top."""
        return round(bottom - (value - y_low) / (y_high - y_low) * (bottom - top), 1)

    max_ticks = 10 if frame.width > 600 else 5
    x_ticks = time_ticks(x_high, max_ticks) if plot.times else number_ticks(x_low, x_high, max_ticks, whole=True)
    return Chart(
        size=frame.size,
        label=plot.label,
        summary=_summary(plot),
        width=frame.width,
        height=frame.height,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        x_title=plot.x_title,
        x_ticks=tuple(Tick(x(at), label) for at, label in x_ticks),
        y_ticks=tuple(Tick(y(at), label) for at, label in number_ticks(y_low, y_high, 5, whole=plot.counts)),
        lines=tuple(
            Line(series.meaning, path([(x(a), y(b)) for a, b in points]))
            for series, points in _thinned(plot.series, frame.points)
        ),
        marks=tuple(Mark(meaning, x(a), y(b), title) for meaning, a, b, title in plot.marks),
        rules=rules([(x(at), label) for at, label in plot.rules], left, right),
        bands=bands([(x(a), x(b), label, title) for a, b, label, title in plot.bands]),
        hover=json.dumps([[x(a), y(b), text] for a, b, text in thinned(plot.hover, frame.hover_points)]),
    )


T = TypeVar("T")


def thinned(points: Sequence[T], limit: int = _MAX_HOVER_POINTS) -> Sequence[T]:
    """Return evenly spaced points, few enough to keep the page small; the last one is kept."""
    every = math.ceil(len(points) / limit)
    return points if every < 2 else [*points[:-1:every], points[-1]]


def _summary(plot: Plot) -> str:
    """Return the label with the first and the last point, and the number of marked failures."""
    ends = " to ".join(text for _, _, text in plot.hover[:: max(1, len(plot.hover) - 1)][:2])
    failures = len(plot.rules)
    marked = f"; {failures} failure{'' if failures == 1 else 's'} marked" if failures else ""
    return f"{plot.label}: {ends}{marked}" if ends else plot.label


def rules(marks: Sequence[tuple[float, str]], left: float, right: float) -> tuple[Rule, ...]:
    """Return vertical lines; labels that would overlap the previous one are omitted."""
    drawn: list[Rule] = []
    label_end = -math.inf
    for x, label in sorted(marks):
        width = len(label) * _LETTER
        anchor = "start" if x < (left + right) / 2 else "end"
        begin = x if anchor == "start" else x - width
        fits = begin > label_end
        drawn.append(Rule(x, label if fits else "", anchor))
        label_end = begin + width + _LETTER if fits else label_end
    return tuple(drawn)


def bands(spans: Iterable[tuple[float, float, str, str]]) -> tuple[Band, ...]:
    """Return vertical bands, labeled if they are wide enough."""
    return tuple(
        Band(begin, round(end - begin, 1), title, label if end - begin > len(label) * _LETTER + 6 else "")
        for begin, end, label, title in spans
    )


def path(points: Iterable[Point]) -> str:
    """Return the `d` of a polyline."""
    return "M" + " ".join(f"{x:g},{y:g}" for x, y in points)


def _thinned(series: Sequence[Series], limit: int) -> list[tuple[Series, list[Point]]]:
    """Share `limit` points among the curves by their length; drop values that are not finite."""
    finite = [(one, [point for point in one.points if math.isfinite(point[1])]) for one in series]
    total = sum(len(points) for _, points in finite)
    return [
        (one, downsample(points, max(4, limit * len(points) // total))) for one, points in finite if len(points) > 1
    ]


def _x_range(plot: Plot) -> tuple[float, float]:
    values = [point[0] for series in plot.series for point in series.points]
    values += [mark[1] for mark in plot.marks] + [band[1] for band in plot.bands]
    high = max(values, default=1.0)
    return 0.0, high if high > 0 else 1.0


def _y_range(plot: Plot) -> tuple[float, float]:
    heights = [point[1] for series in plot.series for point in series.points]
    heights += [mark[2] for mark in plot.marks]
    values = [value for value in heights if math.isfinite(value)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
    return (0.0 if 0 <= low < margin else low - margin), high + margin
