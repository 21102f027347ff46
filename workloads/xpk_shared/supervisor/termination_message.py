"""Termination message of a host, which Kubernetes and the local control plane store with the pod."""

from __future__ import annotations

import contextlib
import os
import re

_VARIABLE, _FILE = "XPK_TERMINATION_LOG", "/dev/termination-log"
ASKED = "asked to end"
LOST = "lost "  # before the name of a host
_HOST = re.compile(LOST + r"slice (\d{1,6}) host (\d{1,6})\s*")
_MAX_BYTES = 4096  # bytes that Kubernetes stores


def write(text: str) -> None:
    """Write the termination message, replacing an earlier one; do nothing without a file for it."""
    file = os.environ.get(_VARIABLE)
    with contextlib.suppress(OSError):
        descriptor = os.open(file or _FILE, os.O_WRONLY | os.O_TRUNC | (os.O_CREAT if file else 0), 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)


def record_request() -> None:
    """Record for a local control plane, which does not see who sends SIGTERM, that the host was asked to end."""
    if os.environ.get(_VARIABLE):
        write(ASKED)


def read_lost() -> tuple[int, int] | None:
    """Return the slice and the number of the host that the command has declared lost, None if there is none."""
    with contextlib.suppress(OSError), open(os.environ.get(_VARIABLE) or _FILE, "rb") as stream:
        match = _HOST.fullmatch(stream.read(_MAX_BYTES).decode("utf-8", "replace"))
        return (int(match[1]), int(match[2])) if match else None
    return None
