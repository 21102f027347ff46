"""Faults of links between local hosts, by iptables in a network of the matrix's own.

A host listens on an address of its own, but connects from 127.0.0.1: of the connections that it opens, those that exist
at the time of the fault are cut.
"""

from __future__ import annotations

import re
import subprocess

from e2e.matrix.cell import Cell
from e2e.matrix.fault import LOCAL, Holds, fault
from e2e.matrix.programs import place_of

_LONG_SECONDS, _SHORT_SECONDS = 30.0, 5.0
_RECOVERY_SECONDS = 420.0
_LINE = re.compile(r"^ESTAB\s+\d+\s+\d+\s+\S+:(\d+)\s.*\bpid=(\d+)")


@fault(
    "partition-shortly", f"A host and all others lose each other for {_SHORT_SECONDS:.0f} s.", Holds.CONTINUES,
    platforms=(LOCAL,),
)  # fmt: skip
def _shortly(cell: Cell) -> None:
    cell.train()
    _cut(cell, cell.any_host(), _SHORT_SECONDS)


@fault(
    "partition", f"A host and all others lose each other for {_LONG_SECONDS:.0f} s.", Holds.RESTARTS,
    platforms=(LOCAL,),
)  # fmt: skip
def _long(cell: Cell) -> None:
    cell.train()
    _cut(cell, cell.any_host(), _LONG_SECONDS)


@fault(
    "partition-of-coordinator", f"Slice 0 host 0 and all others lose each other for {_LONG_SECONDS:.0f} s.",
    Holds.RESTARTS, platforms=(LOCAL,),
)  # fmt: skip
def _coordinator(cell: Cell) -> None:
    cell.train()
    _cut(cell, 0, _LONG_SECONDS)


def _cut(cell: Cell, host: int, seconds: float) -> None:
    """Drop all packets of a host for some seconds."""
    address, pids = _address(cell, host), set(cell.processes(host))
    rules = [["-d", address], ["-s", address]]
    listed = subprocess.run(["ss", "-tnpH"], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        if (found := _LINE.match(line)) and int(found[2]) in pids:
            rules += [["-p", "tcp", "--sport", found[1]], ["-p", "tcp", "--dport", found[1]]]
    script = "".join(f"-A OUTPUT {' '.join(rule)} -j DROP\n" for rule in rules)
    # Supervisors that have lost each other, while none has ended, wait a minute for the control plane to end them.
    cell.limit_seconds = _RECOVERY_SECONDS
    cell.strike(lambda: _restore(script))
    cell.heal_after(seconds, lambda: _restore(""))


def _restore(rules: str) -> None:
    """Replace all rules for packets at once."""
    subprocess.run(["iptables-restore"], input=f"*filter\n{rules}COMMIT\n", text=True, check=True)


def _address(cell: Cell, host: int) -> str:
    """Return the address on which a host listens."""
    with open(f"/proc/{cell.progress.pid(host)}/environ", encoding="utf-8") as file:
        variables = dict(item.partition("=")[::2] for item in file.read().split("\0"))
    return variables["TPU_WORKER_HOSTNAMES"].split(",")[place_of(host)[1]]
