"""Comparison of what two versions tell of the same objects."""

from __future__ import annotations

from typing import Any


def in_both(then: Any, now: Any) -> Any:
    """Return the fields of `now` that existed `then`, at all depths."""
    if isinstance(then, dict) and isinstance(now, dict):
        return {key: in_both(then[key], now[key]) for key in then if key in now}
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [in_both(*pair) for pair in zip(then, now, strict=True)]
    return now
