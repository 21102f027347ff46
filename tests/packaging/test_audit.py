"""`make audit`: a package that was not checked is not reported as clean."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.audit import CLEAN, NOT_CHECKED, VULNERABLE, Outcome, audit, read_report

GOOD: dict[str, Any] = {"name": "click", "version": "8.5.1", "vulns": []}
BAD: dict[str, Any] = {
    "name": "pip",
    "version": "1.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.0", "1.1"]}, {"id": "PYSEC-2", "fix_versions": []}],
}
SKIPPED: dict[str, Any] = {"name": "libtpu", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("report", "outcome"),
    [
        ([GOOD, GOOD], Outcome(CLEAN, ("clean: 2 packages",))),
        ([GOOD, SKIPPED], Outcome(NOT_CHECKED, ("not checked: 1 of 2 packages: Dependency not found",))),
        ([], Outcome(NOT_CHECKED, ("not checked: the files have no packages for this machine",))),
        (
            [SKIPPED, BAD],
            Outcome(
                VULNERABLE,
                (
                    "vulnerable: pip 1.0: PYSEC-1, fixed in 2.0, 1.1",
                    "vulnerable: pip 1.0: PYSEC-2, fixed in no version yet",
                    "not checked: 1 of 2 packages: Dependency not found",
                ),
            ),
        ),
    ],
)
def test_the_outcome_tells_clean_from_not_checked(report: list[dict[str, Any]], outcome: Outcome) -> None:
    assert read_report(report) == outcome


def program(folder: Path, source: str) -> str:
    """Return an executable Python program."""
    file = folder / "pip-audit"
    file.write_text(f"#!{sys.executable}\n{source}\n", encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def test_the_report_of_the_program_is_read(tmp_path: Path) -> None:
    report = json.dumps({"dependencies": [GOOD, BAD], "fixes": []})
    asked = "import sys; assert sys.argv.count('--requirement') == 2 and '--disable-pip' in sys.argv"
    outcome = audit(program(tmp_path, f"{asked}; print({report!r}); sys.exit(1)"), ["a.txt", "b.txt"])
    assert outcome.exit_code == VULNERABLE and len(outcome.lines) == 2


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            "raise SystemExit('ConnectionError: name resolution failed')",
            "not checked: ConnectionError: name resolution",
        ),
        ("raise SystemExit(1)", "not checked: exit code 1, and no report"),
        ("print('{}')", "not checked: exit code 0, and no report"),
        ("print('[]')", "not checked: exit code 0, and no report"),
    ],
)
def test_a_service_that_does_not_answer_is_reported_in_one_line(tmp_path: Path, source: str, line: str) -> None:
    outcome = audit(program(tmp_path, source), ["a.txt"])
    assert outcome.exit_code == NOT_CHECKED and outcome.lines[0].startswith(line) and len(outcome.lines) == 1


def test_a_missing_program_is_reported(tmp_path: Path) -> None:
    outcome = audit(str(tmp_path / "pip-audit"), ["a.txt"])
    assert outcome.exit_code == NOT_CHECKED and outcome.lines[0].endswith("not found")
