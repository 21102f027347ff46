"""Termination message of a host: Kubernetes stores it with the pod, the local control plane acts on it."""

from __future__ import annotations

import contextlib
import os

_VARIABLE, _FILE = "XPK_TERMINATION_LOG", "/dev/termination-log"
ASKED = "asked to end"
LOST = "lost "  # before the name of a host


def write(text: str) -> None:
    """Write the termination message, replacing an earlier one; do nothing where there is no file for it."""
    file = os.environ.get(_VARIABLE)
    with contextlib.suppress(OSError):
        to = os.open(file or _FILE, os.O_WRONLY | os.O_TRUNC | (os.O_CREAT if file else 0), 0o600)
        with open(to, "w", encoding="utf-8") as word:
            word.write(text)
