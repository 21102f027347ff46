"""Signals to the processes of hosts."""

from __future__ import annotations

import os
import signal

from e2e.matrix.cell import Cell, send_if_alive
from e2e.matrix.fault import LOCAL, Holds, fault
from e2e.matrix.programs import HOSTS, HOSTS_PER_SLICE, place_of

LONG_SECONDS, SHORT_SECONDS = 25.0, 4.0  # silence counts as a loss after 20 s
_MINUTES_SECONDS = 150.0  # longer than JAX waits for a host, too
_ONLY_LOCAL = (LOCAL,)


@fault("kill-process", "SIGKILL of the process that trains on a host other than the coordinator's.", Holds.RESTARTS)
def _kill_process(cell: Cell) -> None:
    cell.train()
    cell.send(signal.SIGKILL, cell.any_host())


@fault("kill-coordinator-process", "SIGKILL of the process that trains on slice 0 host 0.", Holds.RESTARTS)
def _kill_coordinator_process(cell: Cell) -> None:
    cell.train()
    cell.send(signal.SIGKILL, 0)


@fault("kill-two-processes", "SIGKILL of the processes of two hosts of different slices at once.", Holds.RESTARTS)
def _kill_two_processes(cell: Cell) -> None:
    cell.train()
    cell.send(signal.SIGKILL, HOSTS_PER_SLICE - 1, HOSTS_PER_SLICE)


@fault("kill-all-processes", "SIGKILL of the processes of all hosts at once.", Holds.RESTARTS)
def _kill_all_processes(cell: Cell) -> None:
    cell.train()
    cell.send(signal.SIGKILL, *range(HOSTS))


@fault("kill-supervisor", "SIGKILL of a host's supervisor, on kind of its container.", Holds.RESTARTS)
def _kill_supervisor(cell: Cell) -> None:
    cell.train()
    _to_supervisor(cell, cell.any_host(), signal.SIGKILL)


@fault(
    "kill-coordinator-supervisor",
    "SIGKILL of the supervisor of slice 0 host 0, on kind of its container.",
    Holds.RESTARTS,
)
def _kill_coordinator_supervisor(cell: Cell) -> None:
    cell.train()
    _to_supervisor(cell, 0, signal.SIGKILL)


@fault(
    "kill-host",
    "SIGKILL of a host's supervisor and of all processes below it at once.",
    Holds.RESTARTS,
    platforms=_ONLY_LOCAL,
)
def _kill_host(cell: Cell) -> None:
    cell.train()
    _kill(cell, cell.processes(cell.any_host()))


@fault(
    "kill-all-hosts",
    "SIGKILL of the supervisors of all hosts and of all processes below them at once.",
    Holds.RESTARTS,
    platforms=_ONLY_LOCAL,
)
def _kill_all_hosts(cell: Cell) -> None:
    cell.train()
    _kill(cell, [pid for host in range(HOSTS) for pid in cell.processes(host)])


@fault("terminate-host", "SIGTERM to a host's supervisor, as before maintenance.", Holds.SAVES)
def _terminate_host(cell: Cell) -> None:
    cell.train()
    _to_supervisor(cell, cell.any_host(), signal.SIGTERM)


@fault("terminate-coordinator", "SIGTERM to the supervisor of slice 0 host 0.", Holds.SAVES)
def _terminate_coordinator(cell: Cell) -> None:
    cell.train()
    _to_supervisor(cell, 0, signal.SIGTERM)


@fault("stop-process-shortly", f"SIGSTOP of a host's process for {SHORT_SECONDS:.0f} s, then SIGCONT.", Holds.CONTINUES)
def _stop_shortly(cell: Cell) -> None:
    cell.train()
    _stop(cell, SHORT_SECONDS)


@fault(
    "stop-process",
    f"SIGSTOP of a host's process for {LONG_SECONDS:.0f} s, longer than the 20 s after which silence is a loss.",
    Holds.RESTARTS,
    plain="a program without xpk's peer watch waits for the host: see stop-process-of-a-command",
)
def _stop_long(cell: Cell) -> None:
    cell.train()
    _stop(cell, LONG_SECONDS)


@fault(
    "stop-process-of-a-command",
    f"SIGSTOP of a host's process for {LONG_SECONDS:.0f} s; only its own program can notice that.",
    Holds.CONTINUES,
    trainer="see stop-process",
    ray="see stop-process",
)
def _stop_command(cell: Cell) -> None:
    cell.train()
    _stop(cell, LONG_SECONDS)


@fault(
    "stop-host",
    f"SIGSTOP of a host's supervisor and of all processes below it for {LONG_SECONDS:.0f} s.",
    Holds.RESTARTS,
    plain="a program without xpk's peer watch waits for the host: see stop-process-of-a-command",
)
def _stop_host(cell: Cell) -> None:
    cell.train()
    _stop_supervised(cell, LONG_SECONDS)


@fault(
    "stop-host-for-minutes",
    f"SIGSTOP of a host's supervisor and of all processes below it for {_MINUTES_SECONDS:.0f} s.",
    Holds.RESTARTS,
)
def _stop_minutes(cell: Cell) -> None:
    cell.train()
    _stop_supervised(cell, _MINUTES_SECONDS)


def _stop_supervised(cell: Cell, seconds: float) -> None:
    pids = cell.processes(cell.any_host())
    cell.strike(lambda: send_if_alive(signal.SIGSTOP, pids))
    cell.heal_after(seconds, lambda: send_if_alive(signal.SIGCONT, pids))


def _kill(cell: Cell, pids: list[int]) -> None:
    cell.strike(lambda: send_if_alive(signal.SIGKILL, pids))


def _to_supervisor(cell: Cell, host: int, number: signal.Signals) -> None:
    described = cell.described(host)
    cell.strike(lambda: cell.lab.kill(described, number))


def _stop(cell: Cell, seconds: float) -> None:
    host = cell.any_host()
    slice_id, index = place_of(host)
    pid = cell.process(host)

    def send(number: signal.Signals) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            cell.lab.say(f"the stopped process of slice {slice_id} host {index} has ended")

    cell.strike(lambda: send(signal.SIGSTOP))
    cell.heal_after(seconds, lambda: send(signal.SIGCONT))
