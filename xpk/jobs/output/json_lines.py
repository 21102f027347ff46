"""JSON lines from the folder of a run. Their content is untrusted: any program may have written them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

TIMES = (0.0, 4_102_444_800.0)  # Unix seconds: to the year 2100
_LONGEST = 1 << 20  # bytes of a line
_MAX_WHOLE = 2**53  # beyond it a float is not exact
_NUMBERS = (-1e100, 1e100)  # whose sums and squares are still finite


def parse(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line, None if it is not one."""
    if len(text) > _LONGEST:
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def read_number(line: Mapping[str, Any], key: str, limits: tuple[float, float] = _NUMBERS) -> float | None:
    """Return a number within limits, None for anything else."""
    value, (minimum, maximum) = line.get(key), limits
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        return None
    return float(value)


def read_whole(line: Mapping[str, Any], key: str, maximum: int = _MAX_WHOLE) -> int | None:
    """Return an integer from 0 to `maximum`, None for anything else."""
    value = line.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum else None
