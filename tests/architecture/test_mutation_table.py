"""The table of mutation testing agrees with the modules and tests that it names."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

from tools.mutation.report import PAGE, Result, Survivor, write_table
from tools.mutation.table import Target, read_targets

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("target", read_targets(), ids=lambda target: target.name)
def test_modules_functions_and_tests_of_the_table_exist(target: Target) -> None:
    source = (ROOT / target.module).read_text(encoding="utf-8")
    names = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    assert set(target.functions) <= names
    for arguments in target.tests:
        paths = [word for word in shlex.split(arguments) if word.startswith("tests/")]
        assert paths and all((ROOT / path).exists() for path in paths)


@pytest.mark.parametrize("target", read_targets(), ids=lambda target: target.name)
def test_equivalent_mutations_are_of_the_present_code(target: Target) -> None:
    words = " ".join((ROOT / target.module).read_text(encoding="utf-8").split())
    outdated = [item.old for item in target.equivalent if " ".join(item.old.split()) not in words]
    assert outdated == []


def test_equivalent_mutations_do_not_count_and_timeouts_do(tmp_path: Path) -> None:
    survivors = (Survivor(1, "a", "b", "the same"), Survivor(2, "c", "d"))
    result = Result(
        name="m", module="m.py", seed=1, date="2026-11-26", places=9, drawn=6, unchanged_seconds=1.0,
        survivors=survivors,
    )  # fmt: skip
    for killer in ("tests/test_a.py::test_b", "timeout", "import", "tests/test_a.py::test_c", "", ""):
        result = result.with_killer(killer)
    assert (result.failed, result.timed_out, result.not_imported, result.percent) == (2, 1, 1, 80.0)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results of make mutation -->\nold\n<!-- end of results -->\nafter\n")
    write_table([result], page)
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after") and "old" not in lines
    assert "| `m.py` | 9 | 6 | 4 | 1 | 1 | 80 % |" in lines


def test_the_page_has_a_place_for_the_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.index("<!-- results of make mutation -->") < text.index("<!-- end of results -->")
