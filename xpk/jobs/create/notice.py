"""Progress messages of a submission."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notice:
    """One line about a finished step of a submission or, with `is_warning`, about a possible mistake."""

    text: str
    is_warning: bool = False


Report = Callable[[Notice], None]


def ignore(notice: Notice) -> None:
    """Drop a notice."""
