"""A helper that waits for a condition with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    condition: Callable[[], T], *, seconds: float = 30.0, every: float = 0.05, report: Callable[[], object] = str
) -> T:
    """Return the first true value of `condition`; after `seconds`, fail with the text of `report`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {report()}"
        time.sleep(every)
    return value
