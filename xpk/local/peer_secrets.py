"""Secrets by which the hosts of a JobSet authenticate each other: a private file each, next to the pods' folders."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

_FOLDER = "secrets"
_BYTES = 32


def path(cluster: Path, uid: str) -> Path:
    """Return the path of a JobSet's secret, which may not exist."""
    return cluster / _FOLDER / uid


def make(cluster: Path, uid: str) -> Path:
    """Return the file of a JobSet's secret; create it if it does not exist. For the daemon only."""
    file = path(cluster, uid)
    if not file.exists():
        file.parent.mkdir(mode=0o700, exist_ok=True)
        new = file.with_suffix(".new")
        new.unlink(missing_ok=True)
        with open(new, "x", encoding="ascii", opener=_private) as opened:
            opened.write(secrets.token_hex(_BYTES))
        new.replace(file)
    return file


def sweep(cluster: Path, names: set[str]) -> None:
    """Remove the secrets of deleted JobSets."""
    for file in (cluster / _FOLDER).glob("*"):
        if file.name not in names:
            file.unlink(missing_ok=True)


def _private(file: str, flags: int) -> int:
    return os.open(file, flags, 0o600)
