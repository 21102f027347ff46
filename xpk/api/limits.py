"""Limits of a client's requests in time, size and number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one client of an API server."""

    total_seconds: float = 30.0  # for one request, including retries
    notice_seconds: float = 10.0  # then the user is told that the server does not answer
    max_bytes: int = 128 << 20  # of a response, once inflated
    slow_seconds: float = 60.0  # in which a log that is not followed must bring 1 KiB
    quiet_seconds: float = 120.0  # of silence, then a log is requested again: the connection may have been dropped
    read_burst: int = 300  # reads at once, before they are paced
    credential_seconds: float = 20.0  # for an exec plugin without a terminal
    renewal_seconds: float = 10.0  # between two runs of an exec plugin


DEFAULT = Limits()
