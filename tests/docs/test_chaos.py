"""The chaos matrix: its page, its results and its faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.matrix import page, results
from e2e.matrix.catalog import FAULTS
from e2e.matrix.cell import Outcome
from e2e.matrix.fault import LOCAL, PLATFORMS, PROGRAMS, TRAINER, Holds


def test_the_page_is_what_the_stored_results_give() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.content(), "run `python -m e2e.matrix --table`"


def test_stored_results_are_of_cells_to_which_the_fault_applies() -> None:
    for platform in PLATFORMS:
        for name in results.read(platform):
            fault, program = name.split()
            assert FAULTS[fault].why_not(platform, program) == ""


def test_reasons_name_known_programs_and_every_fault_has_a_sentence() -> None:
    assert len(FAULTS) >= 25
    for fault in FAULTS.values():
        assert {key.partition(" on ")[0] for key in fault.inapplicable} <= set(PROGRAMS)
        assert fault.description.endswith(".") and set(fault.platforms) <= set(PLATFORMS)


def test_the_page_says_why_a_fault_is_absent_from_a_platform() -> None:
    section = page.content().partition("## On one platform only")[2]
    listed = re.findall(r"`([^`]+)`", "".join(line.split(" | ")[0] for line in section.splitlines()))
    assert sorted(listed) == sorted(fault.name for fault in FAULTS.values() if len(fault.platforms) < len(PLATFORMS))


def test_the_result_of_a_cell_is_replaced_and_others_stay(tmp_path: Path) -> None:
    first, second = [name for name, fault in FAULTS.items() if fault.holds is Holds.RESTARTS][:2]
    for fault, seconds in ((first, 1.0), (second, 2.0), (first, 3.0)):
        results.write(LOCAL, fault, TRAINER, Outcome(True, True, 4, seconds, 1), seed=1, folder=tmp_path)
    known = results.read(LOCAL, tmp_path)
    assert {name: result["seconds"] for name, result in known.items()} == {
        f"{first} {TRAINER}": 3.0,
        f"{second} {TRAINER}": 2.0,
    }
    assert "survived, =, 4 steps, 3.0 s" in page.content(tmp_path)


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome(True, True, 0, 0.25, 0), "survived, =, 0 steps, 0.2 s"),
        (Outcome(True, False, 2, 3.0, 1), "survived, other losses, 2 steps, 3.0 s"),
        (Outcome(False, reason="12 restarts"), "**failed**: 12 restarts"),
    ],
)
def test_outcomes_in_words(outcome: Outcome, text: str) -> None:
    assert page.text(page.facts(outcome), FAULTS["kill-process"]) == text
