"""docs/chaos.md, from the stored results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from e2e.matrix import results
from e2e.matrix.absent import why_absent
from e2e.matrix.catalog import FAULTS
from e2e.matrix.cell import Outcome
from e2e.matrix.fault import PLATFORMS, PROGRAMS, Fault, Holds
from e2e.matrix.programs import DETAILS, TITLES

PAGE = Path(__file__).parents[2] / "docs" / "chaos.md"
_INTRODUCTION = """# Chaos matrix

Every kind of fault, injected into a running workload of every program, one cell at a time. This page is generated:
`python -m e2e.matrix` runs the cells and stores their results in `e2e/matrix/results/`, `python -m e2e.matrix --table`
writes the page. What happens at each failure, and why: [Failures and recovery](recovery.md).
"""
_LEGEND = """
A run has 2 slices of 2 hosts. A cell has:

- **survived**: what has to hold does hold. **refused**: the workload or the command failed at once, as documented.
  **failed**: what has to hold does not.
- **=**: every loss of the run has the same bits as in an undisturbed run, also those of steps that were repeated.
- **steps**: finished steps that were lost and repeated.
- **s**: seconds from the fault to the next finished step of the restarted run. Without a restart: the longest pause
  between two steps.
- **not run**: no result is stored yet; `--platform`, `--program` and `--fault` choose the cell.
- **–**: the fault does not apply to the program; the reason is below the table.
"""


def write(file: Path = PAGE, folder: Path = results.FOLDER) -> None:
    """Write the page."""
    file.write_text(content(folder), encoding="utf-8")


def content(folder: Path = results.FOLDER) -> str:
    """Return the page from the results in a folder."""
    parts = [_INTRODUCTION, _programs(), _LEGEND]
    for platform in PLATFORMS:
        parts.append(_section(platform, results.read(platform, folder)))
    parts.append(_absences())
    return "\n".join(parts).rstrip("\n") + "\n"


def _absences() -> str:
    """Return the faults of one platform, and why they are not injected on the other one."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for fault in FAULTS.values():
        if len(fault.platforms) < len(PLATFORMS):
            by_reason.setdefault((fault.platforms[0], why_absent(fault)), []).append(f"`{fault.name}`")
    lines = ["## On one platform only", "| faults | only on | why |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {', '.join(names)} | {where} | {why} |" for (where, why), names in by_reason.items())]
    )


def facts(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as it is stored."""
    return asdict(outcome)


def text(result: Mapping[str, Any], fault: Fault) -> str:
    """Return a result in words."""
    if not result["holds"]:
        return f"**failed**: {result['reason']}"
    if fault.holds is Holds.REFUSED:
        return "refused"
    words = ["survived", "=" if result["bit_equal"] else "other losses"]
    return ", ".join([*words, _count(result["steps_lost"], "step"), f"{result['seconds']:.1f} s"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _programs() -> str:
    rows = [f"| {TITLES[program]} | {DETAILS[program]} |" for program in PROGRAMS]
    return "\n".join(["| program | what runs |", "|---|---|", *rows])


def _section(platform: str, known: Mapping[str, Mapping[str, Any]]) -> str:
    faults = [fault for fault in FAULTS.values() if platform in fault.platforms]
    names = {f"{fault.name} {program}" for fault in faults for program in PROGRAMS}
    shown = [result for name, result in known.items() if name in names]
    lines = [f"## On {platform}", _summary(shown), ""]
    if not shown:
        return "\n".join(lines)
    lines += [f"| fault | {' | '.join(TITLES[program] for program in PROGRAMS)} |", f"|---|{'---|' * len(PROGRAMS)}"]
    for fault in faults:
        cells = [_cell(fault, platform, program, known.get(f"{fault.name} {program}")) for program in PROGRAMS]
        lines.append(f"| `{fault.name}` | {' | '.join(cells)} |")
    lines += ["", f"### Faults on {platform}", "| fault | what is done | what has to hold | does not apply to |"]
    lines += ["|---|---|---|---|", *(_explained(fault, platform) for fault in faults), ""]
    if refused := [line for fault in faults for line in _refusals(fault, known)]:
        lines += [f"### Refusals on {platform}", *refused, ""]
    return "\n".join(lines)


def _cell(fault: Fault, platform: str, program: str, result: Mapping[str, Any] | None) -> str:
    if fault.why_not(platform, program):
        return "–"
    return text(result, fault).replace("|", "\\|") if result else "not run"


def _explained(fault: Fault, platform: str) -> str:
    reasons = {program: fault.why_not(platform, program) for program in PROGRAMS}
    absent: dict[str, list[str]] = {}
    for program, reason in reasons.items():
        absent.setdefault(reason, []).append(TITLES[program])
    why = "; ".join(f"{', '.join(programs)}: {reason}" for reason, programs in absent.items() if reason)
    return f"| `{fault.name}` | {fault.description} | {fault.holds} | {why} |"


def _refusals(fault: Fault, known: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = [known.get(f"{fault.name} {program}") for program in PROGRAMS]
    if fault.holds is not Holds.REFUSED:
        return []
    return [f"- `{fault.name}`: `{result['reason']}`" for result in found if result and result["holds"]][:1]


def _summary(shown: list[Mapping[str, Any]]) -> str:
    if not shown:
        return "No cell has been run."
    dates = sorted({str(result["date"]) for result in shown})
    versions = sorted({str(result["version"]) for result in shown})
    holding = sum(bool(result["holds"]) for result in shown)
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"What has to hold holds in {holding} of {len(shown)} cells ({span}, xpk {', '.join(versions)})."
