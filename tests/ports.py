"""Free ports for servers that are started later."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

# From 32768 on, the kernel gives ports to outgoing connections: they may be in use when the server starts.
_FIRST, _LAST = 20000, 29999
_choice = random.Random()


def free_port() -> int:
    """Return a free port; the next two are free as well, as the hosts of a job need."""
    return free_ports(3)[0]


def free_ports(count: int) -> list[int]:
    """Return consecutive ports at which nothing listens."""
    while True:
        first = _choice.randint(_FIRST, _LAST - count)
        ports = list(range(first, first + count))
        with ExitStack() as stack:
            try:
                for port in ports:
                    stack.enter_context(socket.create_server(("", port)))
            except OSError:
                continue
        return ports
