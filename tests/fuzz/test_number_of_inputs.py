"""The number of inputs that all tests of this folder try together."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.fuzz.counts import EXAMPLES, PLANNED


def test_at_least_3000_inputs_are_tried() -> None:
    """Each test asserts that it has tried its part; see conftest.py."""
    for file in Path(__file__).parent.glob("test_*.py"):
        import_module(f"tests.fuzz.{file.stem}")
    assert sum(PLANNED.values()) >= max(EXAMPLES, 3000), PLANNED
