"""The program of a host: starts the supervisor that its environment describes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from xpk_shared.links.errors import AddressError
from xpk_shared.supervisor.command import adopt_orphans
from xpk_shared.supervisor.host import Host, read_host, say
from xpk_shared.supervisor.peers import Peers
from xpk_shared.supervisor.signals import Signals
from xpk_shared.supervisor.supervision import FAILED, NOT_STARTED, Limits, Supervisor

if TYPE_CHECKING:
    from xpk_shared.supervisor.registry import RegistryServer


def main(
    argv: list[str],
    environ: Mapping[str, str] = os.environ,
    *,
    limits: Limits | None = None,
    open_peers: Callable[[Host, bytes, Callable[[], None]], Peers] = Peers,
) -> int:
    """Run a command as one host of several; return its exit code."""
    host = read_host(environ)
    if host is None:
        os.execvp(argv[0], argv)  # the environment does not describe the other hosts
    limits, signals = limits or Limits(), Signals()
    adopt_orphans()
    secret = host.read_secret()
    peers = open_peers(host, secret, signals.wake)
    try:
        registry = _registry(host, secret, limits) if host.elastic else None
        kind = _replacing_supervisor() if host.replaces_slices and peers.is_linked else Supervisor
        supervisor = kind(host, argv, environ, peers, signals, limits, registry)
    except AddressError as error:
        say(f"{error}; exiting because the slices cannot register")
        return FAILED
    except OSError as error:
        say(f"cannot run {argv[0]}: {error.strerror}")
        return NOT_STARTED
    supervisor.connect()
    return supervisor.run()


# Each of these modules is only in the archives of workloads that need it (xpk/render/supervisor.py).


def _registry(host: Host, secret: bytes, limits: Limits) -> RegistryServer | None:
    from xpk_shared.supervisor.registry import open_registry

    return open_registry(host, secret, limits.registry_seconds)


def _replacing_supervisor() -> type[Supervisor]:
    from xpk_shared.supervisor.replacement_supervisor import ReplacingSupervisor

    return ReplacingSupervisor
