"""Names that are closest to a misspelled one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question with the name that is closest to `name`, "" if none is similar."""
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean '{near[0]}'?" if near else ""
