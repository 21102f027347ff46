"""The number of inputs that all tests of this folder try together, and those that are kept."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.counts import EXAMPLES, PLANNED, kept_inputs


def test_at_least_3000_inputs_are_tried() -> None:
    """Each test asserts that it has tried its part; see conftest.py."""
    for file in Path(__file__).parent.glob("test_*.py"):
        import_module(f"tests.fuzz.{file.stem}")
    assert sum(PLANNED.values()) >= max(EXAMPLES, 3000), PLANNED


def test_an_input_that_fails_is_kept_and_tried_first_the_next_time(tmp_path: Path) -> None:
    tried: list[int] = []

    def attempt() -> None:
        @settings(database=kept_inputs(tmp_path))
        @given(st.integers(0, 1_000_000))
        def check(number: int) -> None:
            tried.append(number)
            assert number < 1000

        with pytest.raises(AssertionError):
            check()

    attempt()
    tried.clear()
    attempt()
    assert tried[0] == 1000
