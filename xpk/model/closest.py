"""Names that are closest to a misspelled one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return a question with the name that is closest to `name`, "" if none has a similarity of `cutoff`, 0 to 1."""
    near = difflib.get_close_matches(name, names, 1, cutoff)
    return f"did you mean '{near[0]}'?" if near else ""


def with_closest(problem: str, name: str, names: Iterable[str], *, cutoff: float = 0.6, mark: str = ":") -> str:
    """Return a problem with an unknown name, and after a mark the question of `did_you_mean`, if there is one."""
    question = did_you_mean(name, names, cutoff=cutoff)
    return f"{problem}{mark} {question}" if question else problem
