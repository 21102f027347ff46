"""Messages of a submission to whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notice:
    """One line on what a submission does or, with `is_warning`, on what may not be as intended."""

    text: str
    is_warning: bool = False


Report = Callable[[Notice], None]


def ignore(notice: Notice) -> None:
    """Drop a notice."""
