"""Termination message of a host: Kubernetes stores it with the pod, the local control plane acts on it."""

from __future__ import annotations

import contextlib
import os
import re

_VARIABLE, _FILE = "XPK_TERMINATION_LOG", "/dev/termination-log"
ASKED = "asked to end"
LOST = "lost "  # before the name of a host
_HOST = re.compile(LOST + r"slice (\d{1,6}) host (\d{1,6})\s*")
_MOST = 4096  # bytes that Kubernetes stores


def write(text: str) -> None:
    """Write the termination message, replacing an earlier one; do nothing where there is no file for it."""
    file = os.environ.get(_VARIABLE)
    with contextlib.suppress(OSError):
        to = os.open(file or _FILE, os.O_WRONLY | os.O_TRUNC | (os.O_CREAT if file else 0), 0o600)
        with open(to, "w", encoding="utf-8") as word:
            word.write(text)


def read_lost() -> tuple[int, int] | None:
    """Return the slice and the number of the host that the command has declared lost, None if it has not."""
    with contextlib.suppress(OSError), open(os.environ.get(_VARIABLE) or _FILE, "rb") as word:
        found = _HOST.fullmatch(word.read(_MOST).decode("utf-8", "replace"))
        return (int(found[1]), int(found[2])) if found else None
    return None
