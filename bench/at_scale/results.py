"""Results of the benchmarks: the growth with the hosts, and the file."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "results"
LARGE = 1024  # hosts, from which the exponent counts


def exponent(points: Iterable[tuple[int, float]]) -> float | None:
    """Return k of `seconds ~ hosts**k` by least squares of the logarithms; None for fewer than two sizes."""
    logs = [(math.log(hosts), math.log(seconds)) for hosts, seconds in points if hosts >= LARGE]
    if len({hosts for hosts, _ in logs}) < 2:
        return None
    return round(statistics.linear_regression(*zip(*logs, strict=True)).slope, 3)


def medians(rows: Iterable[Mapping[str, Any]], value: str) -> dict[str, dict[int, float]]:
    """Return the medians of a value by variant and hosts, of the runs that completed."""
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["completed"]:
            values[row["variant"]][row["hosts"]].append(row[value])
    return {name: {hosts: statistics.median(seen) for hosts, seen in sizes.items()} for name, sizes in values.items()}


def machine() -> dict[str, Any]:
    """Return the machine of a measurement."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def write(name: str, content: Mapping[str, Any], output: Path | None) -> Path:
    """Write results to a file, by default one of today; return it."""
    today = datetime.now(UTC).date().isoformat()
    file = output or FOLDER / f"{name}-{today}.json"
    text = json.dumps({"date": today, "machine": machine(), **content}, indent=1)
    file.write_text(text + "\n", encoding="utf-8")
    return file


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---:" for _ in header], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
