"""A port of a host, on this machine: every connection made here becomes one to the host."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from xpk.api.base import Connection, Obj, ObjectApi
from xpk.model import names
from xpk.model.errors import ConflictError, UsageError, XpkError

_CHUNK = 1 << 16


def parse_ports(text: str) -> tuple[int, int]:
    """Return (port here, port of the host) of `PORT` or `LOCAL:PORT`; 0 here is any. Raises UsageError."""
    here, _, there = text.rpartition(":")
    here = here or there
    if not (here.isdecimal() and there.isdecimal() and int(here) < 65536 and 0 < int(there) < 65536):
        raise UsageError(f"'{text}' are no ports", hint="PORT or LOCAL:PORT, for example 8265 or 9000:8265")
    return int(here), int(there)


def ray_token(api: ObjectApi, pod: Obj) -> str | None:
    """Return the token that the Ray cluster of a workload asks for (docs/environment.md); None if it has no Ray."""
    spec, meta = pod["spec"], pod["metadata"]
    if "xpk_ray" not in spec["containers"][0].get("command", ()):
        return None
    name = names.peer_secret(meta["labels"][names.WORKLOAD_LABEL])
    found = api.get("Secret", name, meta["namespace"])["data"][names.PEER_SECRET_KEY]
    return hmac.new(base64.b64decode(found), b"xpk-ray", hashlib.sha256).hexdigest()


def listen(port: int) -> socket.socket:
    """Listen on a port of this machine, for this machine alone. Raises ConflictError where it is taken."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConflictError(
            f"cannot listen on port {port} of this machine: {error.strerror}",
            hint=f"LOCAL:PORT, such as {port + 1}:{port}",
        ) from error


def serve(listener: socket.socket, connect: Callable[[], Connection], tell: Callable[[str], None]) -> None:
    """Pass connections on until the listener is closed; what goes wrong with one is told, and others go on."""
    while True:
        try:
            here, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_pass_on, args=(here, connect, tell), daemon=True).start()


def _pass_on(here: socket.socket, connect: Callable[[], Connection], tell: Callable[[str], None]) -> None:
    with here:
        try:
            there = connect()
        except XpkError as error:
            tell(f"warning: {error.message}")
            return
        back = threading.Thread(target=_copy, args=(there, here), daemon=True)
        back.start()
        _copy(here, there)
        back.join()
        there.close()


def _copy(source: Connection, target: Connection) -> None:
    """Copy until the source ends, then end the target's side."""
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
