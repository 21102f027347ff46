"""Port forwarding: connections to a port of this machine are passed on to a host."""

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
_LAST_PORT = 65535


def parse_ports(text: str) -> tuple[int, int]:
    """Return (local port, port of the host) of `PORT` or `LOCAL:PORT`; local port 0 is any. Raises UsageError."""
    local, _, remote = text.rpartition(":")
    local = local or remote
    if not (local.isdecimal() and remote.isdecimal() and int(local) <= _LAST_PORT and 0 < int(remote) <= _LAST_PORT):
        raise UsageError(f"invalid port '{text}'", hint="use PORT or LOCAL:PORT, such as 8265 or 9000:8265")
    return int(local), int(remote)


def ray_token(api: ObjectApi, pod: Obj) -> str | None:
    """Return the token of a workload's Ray cluster (docs/environment.md); None without Ray."""
    spec, meta = pod["spec"], pod["metadata"]
    if "xpk_ray" not in spec["containers"][0].get("command", ()):
        return None
    try:
        name = names.peer_secret(meta["labels"][names.WORKLOAD_LABEL])
        encoded = api.get("Secret", name, meta["namespace"])["data"][names.PEER_SECRET_KEY]
        secret = base64.b64decode(encoded)
    except (KeyError, TypeError, ValueError) as error:
        raise XpkError(
            f"the peer secret of host '{meta['name']}' cannot be read", hint="create the workload again"
        ) from error
    return hmac.new(secret, b"xpk-ray", hashlib.sha256).hexdigest()


def listen(port: int, remote: int) -> socket.socket:
    """Listen on a port of the loopback interface, for port `remote` of a host. Raises ConflictError if it is in use."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConflictError(
            f"cannot listen on port {port} of this machine: {error.strerror}",
            hint=f"use another local port: LOCAL:PORT, such as {port + 1 if port < _LAST_PORT else port - 1}:{remote}",
        ) from error


def serve(listener: socket.socket, connect: Callable[[], Connection], tell: Callable[[str], None]) -> None:
    """Forward connections until the listener is closed; a failed one is reported and does not affect others."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_pass_on, args=(client, connect, tell), daemon=True).start()


def _pass_on(client: socket.socket, connect: Callable[[], Connection], tell: Callable[[str], None]) -> None:
    with client:
        try:
            remote = connect()
        except XpkError as error:
            tell(f"warning: {error.message}")
            return
        back = threading.Thread(target=_copy, args=(remote, client), daemon=True)
        back.start()
        _copy(client, remote)
        back.join()
        remote.close()


def _copy(source: Connection, target: Connection) -> None:
    """Copy until the source ends, then end the target's side."""
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
