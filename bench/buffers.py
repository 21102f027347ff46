"""Peak memory of a program, from the buffer assignment that XLA's TPU compiler dumps.

The dump is early: most of the compile time is code generation, which does not change it. The peak equals that of
`memory_analysis()` of the finished program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_ALLOCATION = re.compile(r"allocation \d+: size (?P<size>\d+)(?P<kind>.*)")
_VALUE = re.compile(
    r"\s+value: <\d+ (?P<name>[\w.-]+)(?P<index>\{[\d,]*\})?(?: \(phi\))? @\d> "
    r"\(size=(?P<size>\d+),offset=(?P<offset>\d+)\)"
)
_LIVE = re.compile(r"^\s+([\w.-]+)(\{[\d,]*\}):?\s*(\d+)-(\d+)", re.MULTILINE)

Span = tuple[int, int]


def state_and_peak(folder: Path, program: str) -> tuple[int, int]:
    """Return the bytes of a program's arguments, and its peak HBM use.

    Results take the place of donated arguments. Arrays that share a place in memory count once.
    """
    assigned = _text(folder, program, "buffer-assignment").splitlines()
    spans = {
        (name, index): (int(first), int(last))
        for name, index, first, last in _LIVE.findall(_text(folder, program, "live-range"))
    }
    arguments, values = 0, list[tuple[Span, Span]]()
    temporary = False
    for line in assigned:
        if allocation := _ALLOCATION.match(line):
            in_hbm = "color" not in allocation["kind"]
            arguments += int(allocation["size"]) if in_hbm and "parameter" in allocation["kind"] else 0
            temporary = in_hbm and "preallocated-temp" in allocation["kind"]
        elif temporary and (value := _VALUE.match(line)):
            span = spans.get((value["name"], value["index"] or "{}"))
            place = int(value["offset"])
            if span:
                values.append((span, (place, place + int(value["size"]))))
    times = sorted({first for (first, _), _ in values})
    return arguments, arguments + max(_covered(place for span, place in values if _holds(span, at)) for at in times)


def _text(folder: Path, program: str, what: str) -> str:
    (file,) = folder.glob(f"*.{program}.*after_optimizations-{what}.txt")
    return file.read_text()


def _holds(span: Span, at: int) -> bool:
    return span[0] <= at <= span[1]


def _covered(places: Iterator[Span]) -> int:
    """Return the number of bytes that at least one of the ranges covers."""
    total = end = 0
    for first, last in sorted(places):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total
