"""docs/fleet-figures.md, from the newest results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.fleet.measures import MEASURES, TIMES
from bench.performance.page import newest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fleet-figures.md"
_INTRODUCTION = """\
# Figures of fleet operations
`python -m bench.fleet` measures these on one machine without TPUs and writes this page again;
`python -m bench.fleet NAME` measures one. It takes ten minutes on two quiet cores.
"""
_OTHERS = (  # what, command, page with the results
    ("500 queue traces, simulated and on Kueue", "python -m e2e.queue_traces", "simulation.md#the-queue-next-to-kueue"),
    ("30 days of a queue of 199 slices, simulated", "python -m bench.queue_simulation", "simulation.md"),
    ("goodput forecast against runs with random kills", "python -m bench.forecast", "planning.md"),
    ("checkpoint intervals that tune themselves", "python -m bench.auto_intervals", "planning.md"),
    ("10,000 calls of an agent's tools, and other hostile inputs", "make fuzz", "long-runs.md#hostile-inputs"),
    ("the console and the report page in Chromium", "make e2e", "console.md"),
    ("every kind of fault", "make chaos", "chaos.md"),
)


def read_result() -> dict[str, Any] | None:
    """Return the newest result, None if there is none."""
    file = newest("fleet")
    return json.loads(file.read_text(encoding="utf-8")) if file else None


def render(result: dict[str, Any] | None) -> str:
    """Return the page in Markdown."""
    others = [f"| {what} | `{command}` | [{page.partition('#')[0]}]({page}) |" for what, command, page in _OTHERS]
    headers = ["## Figures that take longer", "| what | command | results |", "|---|---|---|"]
    return "\n".join([_INTRODUCTION, *_table(result or {}), "", *_console(result or {}), *headers, *others, ""])


def _table(result: dict[str, Any]) -> Iterator[str]:
    if machine := result.get("machine"):
        yield (
            f"Measured on {result['date']} with {machine['cores']} cores ({machine['system']}, Python "
            f"{machine['python']}, JAX {machine['jax']}), for which {machine['load_average_15_min']:g} processes "
            "competed on average, ours included."
        )
        yield ""
    yield from ("| name | what | limit | measured | met |", "|---|---|---|---|---|")
    measured = result.get("measured", {})
    for one in MEASURES:
        content = measured.get(one.name)
        words = "not measured yet | –" if content is None else f"{one.words(content)} | {_yes(one.is_met(content))}"
        yield f"| `{one.name}` | {one.title} | {one.limit} | {words} |"


def _console(result: dict[str, Any]) -> Iterator[str]:
    """Yield the times of the console by the number of hosts, as rows of a table."""
    content = result.get("measured", {}).get("console", {})
    yield "## Seconds from a change to its event in the console"
    yield "The API server is in memory; the console, its stream and the files are real. Median, and maximum of 15."
    yield ""
    sizes = [f"{int(hosts):,} hosts" for hosts in content]
    yield f"| change | {' | '.join(sizes)} |"
    yield f"|---|{'---|' * len(sizes)}"
    for key, meaning in TIMES.items():
        cells = [f"{one[key]['median']:.2f} ({one[key]['max']:.2f})" for one in content.values()]
        yield f"| {meaning} | {' | '.join(cells)} |"
    yield ""


def _yes(is_met: bool) -> str:
    return "yes" if is_met else "**no**"
