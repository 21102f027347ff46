"""The page of the figures of fleet operations."""

from __future__ import annotations

from bench.fleet.page import PAGE, read_result, render


def test_the_page_is_written_from_the_newest_result() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(read_result()), "run `python -m bench.fleet`"
