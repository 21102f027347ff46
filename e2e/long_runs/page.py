"""The page of the last results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.long_runs.runs import RUNS, LongRun

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "long-runs.md"
_SHOWN = 12  # results of a run
_INTRODUCTION = """\
# Long runs
CI runs the checks, the tests and most drills. What takes longer is run by hand, before a release and after changes to
restarts, checkpoints or queues. `make e2e-all` runs everything; `python -m e2e.long_runs NAME` runs one, and writes
this page again. [chaos.md](chaos.md) has the faults one by one, [performance.md](performance.md) the measurements.
"""


def read_results(file: Path = RESULTS) -> dict[str, Any]:
    """Return the last result of each run, by its name."""
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return results


def write_results(results: Mapping[str, Any]) -> None:
    """Write the file of the results, and the page."""
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(render(results), encoding="utf-8")


def render(results: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
    return "\n".join([_INTRODUCTION, *("\n".join(_section(run, results.get(run.name))) for run in RUNS)])


def _section(run: LongRun, result: Mapping[str, Any] | None) -> list[str]:
    lines = [f"## {run.title}", f"`{shlex.join(run.command)}`", ""]
    if result is None:
        link = f"[{run.parts.partition('#')[0]}]({run.parts})"
        missing = f"Not run as a whole yet. {link} has the last result of each part." if run.parts else "Not run yet."
        return [*lines, missing, ""]
    outcome = "Passed" if result["exit_code"] == 0 else f"Failed with exit code {result['exit_code']}"
    lines.append(
        f"{outcome} on {result['date']} after {result['seconds'] / 60:.0f} minutes, at commit `{result['commit']}`."
    )
    shown = result["lines"][-_SHOWN:]
    return [*lines, "", "```text", *shown, "```", ""] if shown else [*lines, ""]
