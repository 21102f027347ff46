"""Parsers of times and durations: `90s`, `5m`, `2h`, `1d`, or an RFC 3339 time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from xpk.model.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_since(text: str | None, flag: str = "--since") -> datetime | None:
    """Return the point in time of a flag: `90s`, `5m`, `2h`, `1d` ago, or an RFC 3339 time. Raises UsageError."""
    if text is None:
        return None
    number, unit = text[:-1], text[-1:]
    try:
        if unit in _UNITS:
            return datetime.now(UTC) - timedelta(seconds=float(number) * _UNITS[unit])
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise UsageError(f"{flag} '{text}' is not a time", hint="use 90s, 5m, 2h, 1d or 2026-01-31T12:00:00Z") from None
    return time if time.tzinfo else time.astimezone()


def parse_duration(text: str | None, flag: str) -> float | None:
    """Return the seconds of `300`, `90s`, `5m`, `2h` or `1d`. Raises UsageError for anything else."""
    if text is None:
        return None
    number, unit = (text[:-1], _UNITS[text[-1:]]) if text[-1:] in _UNITS else (text, 1)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{flag} '{text}' is not a time", hint="use seconds, or 90s, 5m, 2h, 1d")
    return seconds
