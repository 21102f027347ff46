"""The page as text: a summary with the ratios, then a section for each benchmark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.performance.sections import SECTIONS, Section

RESULTS = Path(__file__).resolve().parents[1] / "results"
PICTURES = "pictures"  # below docs/
INTRODUCTION = """\
# Performance
All figures were measured on machines without TPUs, with emulated chips where the trainer runs, or on one GPU where it
is named. Ratios compare two programs in one run on one machine, so they carry over better than seconds do. A ratio
above 1 means that xpk is faster or smaller than its peer. `make bench` measures what takes minutes and writes this page
again; the title of each section has the command of the others. [bench/README.md](../bench/README.md) describes the
methods.
"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A section with the content of its newest file, None if there is none."""

    section: Section
    file: Path | None
    content: Mapping[str, Any] | None

    @property
    def picture(self) -> str:
        """Name of the section's picture."""
        return f"performance-{self.section.name}.svg"


def newest(name: str, folder: Path = RESULTS) -> Path | None:
    """Return the newest file of a benchmark; the date is at the end of its name."""
    pattern = re.compile(re.escape(name) + r"-\d{4}-\d\d-\d\d\.json")
    return max((path for path in folder.glob(f"{name}-*.json") if pattern.fullmatch(path.name)), default=None)


def read_measurements(folder: Path = RESULTS) -> list[Measurement]:
    """Return the newest measurement of each section."""
    files = [newest(section.name, folder) for section in SECTIONS]
    return [
        Measurement(section, file, json.loads(file.read_text(encoding="utf-8")) if file else None)
        for section, file in zip(SECTIONS, files, strict=True)
    ]


def render(measurements: Sequence[Measurement]) -> str:
    """Return the page in Markdown."""
    return "\n".join([INTRODUCTION, *_summary(measurements), *(line for one in measurements for line in _part(one))])


def _summary(measurements: Sequence[Measurement]) -> Iterator[str]:
    yield from ("| ratio | what | next to |", "|---:|---|---|")
    for one in measurements:
        if one.content is not None:
            for ratio in one.section.headline(one.content):
                yield f"| {ratio.value:.3g} | {ratio.what} | {ratio.peer} |"
    yield ""
    if missing := [one.section.title for one in measurements if one.content is None]:
        yield f"Not measured: {', '.join(missing)}."
    yield "Never measured: a TPU, several GPUs, a cluster of GKE, more than one machine."
    yield ""


def _part(one: Measurement) -> Iterator[str]:
    yield f"## {one.section.title}"
    yield f"`{one.section.command}`"
    yield ""
    yield one.section.text
    yield ""
    if one.content is None or one.file is None:
        yield "Not measured yet."
    else:
        if one.section.draw:
            yield f"![{one.section.title}]({PICTURES}/{one.picture})"
            yield ""
        header, *rows = one.section.table(one.content)
        yield _row(header)
        yield _row(["---", *("---:" for _ in header[1:])])
        yield from map(_row, rows)
        yield ""
        yield f"{_machine(one.content)} ({one.file.name})."
    yield ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _machine(content: Mapping[str, Any]) -> str:
    """Return the machine, and its load, which includes that of the benchmark."""
    known = content.get("machine", content)
    load = known.get("load_average_15_min", known.get("load", known.get("load_average")))
    load = load[-1] if isinstance(load, list) else load
    date = f"Measured on {content['date']}" if "date" in content else "Measured"
    cores = f" on {known['cores']} cores" if "cores" in known else ""
    return f"{date}{cores}" + ("" if load is None else f" with a load of {load:.0f}")
