"""Errors of links between hosts."""

from __future__ import annotations

from collections.abc import Sequence


class PeerAbsent(Exception):
    """Other hosts did not connect in time; `missing` holds their process ids, as far as known."""

    def __init__(self, message: str, missing: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class AddressError(Exception):
    """This host cannot listen on its own address."""
