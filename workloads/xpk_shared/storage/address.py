"""Addresses of places: paths, and gs://BUCKET/NAME."""

from __future__ import annotations

import re

BUCKET = "gs://"
EMULATOR = "STORAGE_EMULATOR_HOST"  # server that clients of Google Cloud Storage use instead of Google's

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
_NEARLY_BUCKET = re.compile(r"gs:(?!//)", re.IGNORECASE)  # a mistyped address, not a folder's name
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def in_bucket(address: str) -> bool:
    """Return whether an address is in a bucket."""
    return address.startswith(BUCKET)


def address_problems(address: str) -> list[str]:
    """Return the problems of a path or an address, one line each."""
    scheme = _SCHEME.fullmatch(address)
    if _CONTROL.search(address):
        return [f"{address!r} contains control characters"]
    if _NEARLY_BUCKET.match(address) or (scheme and scheme[1] != "gs"):
        return [f"'{address}' is neither a folder nor gs://BUCKET/PREFIX"]
    if not scheme:
        return [] if address else ["the folder name is empty"]
    bucket, _, prefix = scheme[2].partition("/")
    problems = []
    if not _BUCKET_NAME.fullmatch(bucket):
        problems.append(
            f"'{address}' has an invalid bucket name: 3 to 222 lower-case letters, digits, '-', '_' and '.'"
            if bucket
            else f"'{address}' has an invalid bucket name"
        )
    if {"", ".", ".."} & set(prefix.rstrip("/").split("/") if prefix.rstrip("/") else ()) or prefix.endswith("//"):
        problems.append(f"'{address}' has an empty part, '.' or '..' in its prefix")
    return problems


def split_address(address: str) -> tuple[str, str]:
    """Return bucket and name of a valid address."""
    bucket, _, name = address.removeprefix(BUCKET).partition("/")
    return bucket, name.rstrip("/")
