"""`make audit`: ask pip-audit for known vulnerabilities of the pinned versions, and tell `not checked` from `clean`.

pip-audit itself reports "No known vulnerabilities found" if its service knows none of the packages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CLEAN, VULNERABLE, NOT_CHECKED = 0, 1, 3  # exit codes


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an audit: its exit code, and one line for each problem."""

    exit_code: int
    lines: tuple[str, ...]


def audit(program: str, files: Sequence[str]) -> Outcome:
    """Return what `program`, which is pip-audit, reports about lock files. Nothing is installed."""
    command = [program, "--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    for file in files:
        command += ["--requirement", file]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return _not_checked(f"program '{program}' not found")
    try:
        report = json.loads(done.stdout)
        return read_report(report["dependencies"])
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}, and no report"]
        return _not_checked(lines[-1][:300])


def read_report(dependencies: Sequence[dict[str, Any]]) -> Outcome:
    """Return the outcome of pip-audit's report: an entry for each package, skipped or with its vulnerabilities."""
    if not dependencies:
        return _not_checked("the files have no packages for this machine")
    vulnerable = [_vulnerability(each, known) for each in dependencies for known in each.get("vulns", ())]
    skipped = [each["skip_reason"] for each in dependencies if "skip_reason" in each]
    rest = [f"not checked: {len(skipped)} of {len(dependencies)} packages: {skipped[0]}"] if skipped else []
    if vulnerable or rest:
        return Outcome(VULNERABLE if vulnerable else NOT_CHECKED, (*vulnerable, *rest))
    return Outcome(CLEAN, (f"clean: {len(dependencies)} packages",))


def _vulnerability(dependency: dict[str, Any], known: dict[str, Any]) -> str:
    fixed = ", ".join(known["fix_versions"]) or "no version yet"
    return f"vulnerable: {dependency['name']} {dependency['version']}: {known['id']}, fixed in {fixed}"


def _not_checked(why: str) -> Outcome:
    return Outcome(NOT_CHECKED, (f"not checked: {why}",))


if __name__ == "__main__":
    outcome = audit(sys.argv[1], sys.argv[2:])
    print(*outcome.lines, sep="\n")
    sys.exit(outcome.exit_code)
