"""Lets no Python process that tests start talk to anything beyond this machine and private networks.

`tests/offline/guard.py` puts this folder on PYTHONPATH, and Python imports a module of this name whenever it starts.
An audit hook sees all that Python's sockets do, and nothing in the process can take it off again. What is refused is
written to the file that OFFLINE_LOG names, because a library may well swallow the error.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_ASKS = ("socket.getaddrinfo", "socket.gethostbyname")  # arguments: the name, ...
_SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg")  # arguments: the socket, the address
_METADATA = ("169.254.169.254", "fd20:ce::254")  # of Compute Engine: private addresses, yet Google's
GOOGLES = ("googleapis.com", "google.internal", "google.com", "goog", "gcr.io", "pkg.dev", "googleusercontent.com")


class OutsideError(RuntimeError):
    """A test wants to talk to something outside. Not an OSError, so that it is not taken for a network that fails."""


def install() -> None:
    """Begin to refuse; it cannot be undone. The second time does nothing."""
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
    import ipaddress  # only here: most processes never get this far

    if any(name == each or name.endswith(f".{each}") for each in GOOGLES):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False  # a name: its addresses are looked at when they are used
    return address.is_global or str(address) in _METADATA


def _refuse(name: str) -> None:
    what = f"{' '.join(sys.argv[:4]) or 'python'}: {name}"
    if log := os.environ.get("OFFLINE_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{what}\n")
    raise OutsideError(f"no test may talk to {name}: only to this machine and to private networks (tests/offline)")


install()
