"""The page of measurements, and the gate on startup times."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.performance.page import newest, read_measurements, render
from bench.startup import regressions

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_written_from_the_newest_results() -> None:
    measurements = read_measurements()
    assert (DOCS / "performance.md").read_text() == render(measurements), "run `python -m bench.performance`"
    drawn = [one.picture for one in measurements if one.content is not None and one.section.draw]
    assert all((DOCS / "pictures" / name).exists() for name in drawn)


def test_a_missing_result_is_named(tmp_path: Path) -> None:
    page = render(read_measurements(tmp_path))
    assert "Not measured: Commands next to Google's xpk, Startup," in page
    assert page.count("Not measured yet.") == len(read_measurements(tmp_path))


def test_only_files_of_the_benchmark_count(tmp_path: Path) -> None:
    for name in ("recovery-2026-11-22", "recovery-2026-11-24", "recovery-kind-2026-11-25", "recovery-latest"):
        (tmp_path / f"{name}.json").write_text("{}")
    assert newest("recovery", tmp_path) == tmp_path / "recovery-2026-11-24.json"
    assert newest("soak", tmp_path) is None


@pytest.mark.parametrize(("quartiles", "count"), [([1.9, 3.0], 0), ([2.3, 3.0], 0), ([2.31, 2.5], 1)])
def test_the_gate_fails_beyond_the_spread_of_both(quartiles: list[float], count: int) -> None:
    stored = {"xpk --help": {"cpu_quartiles": [1.2, 2.0]}}
    assert len(list(regressions({"xpk --help": {"cpu_quartiles": quartiles}}, stored))) == count
