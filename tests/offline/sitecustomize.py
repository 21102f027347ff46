"""Blocks connections of Python processes in tests to anything beyond this machine and private networks.

`tests/offline/guard.py` puts this folder on PYTHONPATH, and Python imports a module of this name at start. An audit
hook sees all operations of Python's sockets and cannot be removed. Blocked connections are written to the file that
OFFLINE_LOG names, because a library may ignore the error.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_ASKS = ("socket.getaddrinfo", "socket.gethostbyname")  # arguments: the name, ...
_SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg")  # arguments: the socket, the address
_METADATA = ("169.254.169.254", "fd20:ce::254")  # of Compute Engine: private addresses, but Google's
GOOGLES = ("googleapis.com", "google.internal", "google.com", "goog", "gcr.io", "pkg.dev", "googleusercontent.com")


class OutsideError(RuntimeError):
    """A test tried to connect to another machine. Not an OSError, so that it is not treated as a network failure."""


def install() -> None:
    """Start to block; this cannot be undone. Further calls do nothing."""
    if not getattr(sys, "_offline", False):
        sys._offline = True  # type: ignore[attr-defined]  # several copies of this module are one guard
        sys.addaudithook(_look)


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _ASKS:
        _check(arguments[0])
    elif event in _SENDS and isinstance(arguments[1], tuple):
        _check(arguments[1][0])


def _check(host: object) -> None:
    name = host.decode(errors="replace") if isinstance(host, bytes) else host
    if isinstance(name, str) and name and _is_outside(name.rstrip(".").lower()):
        _refuse(name)


def _is_outside(name: str) -> bool:
    import ipaddress  # only here: most processes never need this

    if any(name == item or name.endswith(f".{item}") for item in GOOGLES):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False  # a name: its addresses are checked when they are used
    return address.is_global or str(address) in _METADATA


def _refuse(name: str) -> None:
    what = f"{' '.join(sys.argv[:4]) or 'python'}: {name}"
    if log := os.environ.get("OFFLINE_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{what}\n")
    raise OutsideError(f"no test may talk to {name}: only to this machine and to private networks (tests/offline)")


install()
