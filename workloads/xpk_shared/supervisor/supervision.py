"""Main loop: from the start of the command to this host's exit code."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xpk_shared.supervisor import termination_message
from xpk_shared.supervisor.command import Command, NoCommand
from xpk_shared.supervisor.host import Host, say
from xpk_shared.supervisor.names import CAUSE, EXHAUSTED, PEER_LOST
from xpk_shared.supervisor.peers import Peers
from xpk_shared.supervisor.preflight import Preflight
from xpk_shared.supervisor.progress import ProgressFile
from xpk_shared.supervisor.record import pause_record, restart_record, write_record
from xpk_shared.supervisor.restarts import SHORT_SECONDS, Coordinator, CoordinatorLimits, End
from xpk_shared.supervisor.signals import END, Signals
from xpk_shared.supervisor.silence import Silence
from xpk_shared.supervisor.standby import Standby

if TYPE_CHECKING:
    from xpk_shared.supervisor.registry import RegistryServer

FAILED, NOT_STARTED, ASKED_TO_END = 1, 127, 143  # exit codes of a host
_END_SECONDS, _POLL_SECONDS, _IDLE_SECONDS = 60.0, 0.2, 60.0


@dataclass(frozen=True)
class Limits:
    """Time limits of a supervisor in seconds."""

    grace_seconds: float = 1.0  # from SIGTERM to SIGKILL after a loss; also to send that a host was asked to end
    meet_seconds: float = 10.0  # for which a host whose command has failed early waits for the others to connect
    silent_seconds: float = 20.0  # for the first host to reply to a host that waits for an order; else it is frozen
    standby_seconds: float = 10.0  # from the start of an attempt to the start of the standby's imports
    registry_seconds: float = 60.0  # for all slices to learn that the run has finished, after slice 0 has
    finish_seconds: float = 10.0  # for all hosts to succeed, after one has whose slice was asked to end
    join_seconds: float = 600.0  # for a host of a replaced slice to meet the first host, if that has a pod
    absent_seconds: float = 86_400.0  # to meet any other host, as those may wait for machines


class Supervisor:
    """Supervisor of one host's command over all attempts."""

    _decisions: type[Coordinator] = Coordinator  # of the first host

    def __init__(
        self,
        host: Host,
        argv: list[str],
        environ: Mapping[str, str],
        peers: Peers,
        signals: Signals,
        limits: Limits,
        registry: RegistryServer | None = None,
    ) -> None:
        self._host, self._environ, self._preflight = host, environ, Preflight(argv)
        self._peers, self._signals, self._limits, self._registry = peers, signals, limits, registry
        self._is_asked_to_end = self._is_done = self._is_final = self._is_silent = False
        self._lost_at = 0.0
        program = self._preflight.program
        self._standby = Standby(program, delay_seconds=limits.standby_seconds) if host.max_restarts else None
        self._silence = Silence(limits.silent_seconds, peers.ask) if host.number else None
        coordinator_limits = CoordinatorLimits(meet_seconds=limits.meet_seconds)
        self._coordinator = None if host.number else self._decisions(host, time.monotonic(), coordinator_limits)
        self._progress = ProgressFile(host, environ)
        self._command: Command | NoCommand
        self._begin_first()

    def _begin_first(self) -> None:
        """Begin the first attempt. Raises OSError if the command cannot be started."""
        self._begin(0, {}, is_passed=False)

    def connect(self) -> None:
        """Listen for the other hosts, or connect to the first one, in the background."""
        self._peers.connect()

    def _begin(self, restarts: int, record: dict[str, Any], *, is_passed: bool) -> None:
        """Start the command after this number of restarts in place. Raises OSError if it cannot be started.

        `is_passed`: all hosts have passed the checks that it begins with.
        """
        self._restarts, self._is_stopped, self._has_reported = restarts, False, False
        self._kill_at, self._ended_at = 0.0, 0.0
        environ = self._host.environment(self._environ, restarts, self._peers.first_address)
        environ.update(self._progress.begin(environ, self._host.attempt + restarts, time.time()))
        if record and not self._host.number and not os.path.isabs(self._host.output_dir):
            environ[CAUSE] = json.dumps(record)
        self._started_at = time.monotonic()
        argv = self._preflight.argv(is_passed=is_passed)
        self._command = Command(argv, {**environ, **self._preflight.environment}, self._standby)
        if self._standby:
            self._standby.prepare(environ)

    def run(self) -> int:
        """Return this host's exit code."""
        try:
            code = self._watch()
            if code == ASKED_TO_END:
                termination_message.record_request()
            return code
        finally:
            if self._standby:
                self._standby.close()
            self._progress.close()

    def _watch(self) -> int:
        while True:
            is_waiting = self._is_asked_to_end or self._lost_at or self._is_stopped or self._command.code is not None
            for number in self._signals.wait(_POLL_SECONDS if is_waiting else _IDLE_SECONDS):
                self._forward(number)
            self._command.reap()
            self._report()
            self._send_orders()
            self._execute_orders()
            self._end_if_silent()
            self._follow_first_host()
            self._end_if_lost()
            self._kill_overdue()
            code = self._exit_code()
            if code is not None:
                return code

    @property
    def _restarts_in_place(self) -> bool:
        """True if the first host decides on this host's end: no host is lost, and none was asked to end."""
        return self._may_restart_in_place and not self._peers.lost and not self._is_leaving

    @property
    def _may_restart_in_place(self) -> bool:
        return self._host.max_restarts is not None and self._peers.is_linked

    @property
    def _first_host_decides(self) -> bool:
        """True if the first host needs the ends of commands, and still decides; else Kubernetes recreates all hosts."""
        return self._restarts_in_place

    @property
    def _is_leaving(self) -> bool:
        """True if Kubernetes will recreate this host, because one was asked to end."""
        return self._peers.asked.is_set()

    def _forward(self, number: int) -> None:
        """Forward a signal to the command; announce a request to end to the other hosts first."""
        if number in END and not self._is_asked_to_end:
            self._is_asked_to_end = True
            self._peers.leave(asked=True)
        self._command.forward(number)

    def _report(self) -> None:
        """Report the end of the command to the first host, after all of its processes have ended."""
        code = self._command.code
        if code is None:
            return
        self._ended_at = self._ended_at or time.monotonic()
        if self._first_host_decides and not self._has_reported:
            code = code if self._is_stopped else self._own_code(code)
            self._has_reported = True
            if self._restarts_in_place:
                self._command.clear()
            lost = self._host.number_of(termination_message.read_lost()) if code == PEER_LOST else None
            self._peers.report(End(self._host.number, code, self._is_stopped, lost), self._restarts)

    def _send_orders(self) -> None:
        """Send the orders that follow from the reports; on the first host only."""
        while self._coordinator and self._first_host_decides:
            while self._peers.news:
                self._peers.news.popleft()(self._coordinator)
            order = self._coordinator.decide(time.monotonic(), self._peers.absent)
            if order is None:
                return
            self._record(order, self._coordinator.cause)
            self._peers.order(order)

    def _record(self, order: dict[str, Any], cause: End | None) -> None:
        """Record a restart, or the pause before it, with its cause."""
        if "start" in order and cause:
            order["passed"] = self._preflight.has_passed
            order["record"] = restart_record(self._host, order["start"], cause)
            write_record(self._host, order["record"])
        elif "pause" in order and cause:
            write_record(self._host, pause_record(self._host, order["pause"], order["short_attempts"], cause))

    def _execute_orders(self) -> None:
        """Carry out the first host's orders."""
        while self._peers.orders:
            order = self._peers.orders.popleft()
            if order.get("stop") == self._restarts:
                self._stop(order)
            elif "pause" in order:
                early = f"{order['short_attempts']} attempts in a row have ended within {SHORT_SECONDS:g} s"
                say(f"{early}; the next one starts in {order['pause']:g} s")
            elif "start" in order and not (self._is_asked_to_end or self._peers.lost):
                self._restart(order)
            elif "final" in order:
                self._finish(order)
            elif "done" in order:
                self._is_done = True
            else:
                self._note(order)

    def _note(self, order: dict[str, Any]) -> None:
        """Take another message of the first host."""

    def _stop(self, order: dict[str, Any]) -> None:
        """Stop the command, because that of another host has failed."""
        if self._command.code is not None:
            return
        name = self._host.name(order["number"])
        say(f"the command of host {name} ended with exit code {order['code']}; stopping this host's command")
        self._is_stopped = True
        self._end_command(self._limits.grace_seconds)

    def _end_command(self, seconds: float) -> None:
        """End the command: SIGTERM, and SIGKILL after this time."""
        self._kill_at = time.monotonic() + seconds
        self._command.forward(signal.SIGTERM)

    def _restart(self, order: dict[str, Any]) -> None:
        """Start the command for the next attempt."""
        say(f"restart {order['start']} in place")
        termination_message.write("")
        try:
            self._begin(order["start"], order.get("record", {}), is_passed=bool(order.get("passed")))
        except OSError as error:
            say(f"cannot run {self._preflight.program[0]}: {error.strerror}")
            self._command.code = NOT_STARTED

    def _finish(self, order: dict[str, Any]) -> None:
        """End the last attempt: the named host exits with its own exit code, all others wait for Kubernetes."""
        if order["final"] != self._host.number:
            if order.get("silent"):
                self._is_silent = True
                words = "slice {} host {}".format(*self._host.place(order["final"]))
                termination_message.write(termination_message.LOST + words)
            self._stop_for_loss(order["final"])
            return
        self._is_final = True
        if order.get("exhausted"):
            say(f"no restarts left after {self._restarts}; exiting with {EXHAUSTED}")
            count = "1 restart" if self._restarts == 1 else f"{self._restarts} restarts"
            termination_message.write(f"exit code {self._command.code} after {count} in place")
            self._command.code = EXHAUSTED

    def _end_if_silent(self) -> None:
        """End this host if it waits for an order and the first host is frozen."""
        is_waiting = self._has_reported and self._restarts_in_place and not (self._is_done or self._is_final)
        if not self._silence or not is_waiting or self._is_asked_to_end or self._lost_at or not self._peers.have_met:
            return
        if self._silence.check(time.monotonic(), self._peers.received_at, self._ended_at):
            say("the first host does not respond; exiting so that all hosts are recreated")
            self._finish({"final": 0, "silent": True})

    def _follow_first_host(self) -> None:
        """Connect to the next first host. There is none: all hosts are recreated together."""

    def _end_if_lost(self) -> None:
        """Stop the command if another host is lost; if it was already stopped, wait for Kubernetes."""
        if self._is_asked_to_end or self._lost_at:
            return
        if self._command.code is None and self._peers.lost:
            self._stop_for_loss(self._peers.lost[0])
        elif self._command.code is not None and self._is_stopped and not self._restarts_in_place:
            self._lost_at = time.monotonic()

    def _stop_for_loss(self, number: int) -> None:
        """Stop the command because of a host that Kubernetes must recreate, together with all others."""
        self._lost_at = self._lost_at or time.monotonic()
        if self._command.code is None:
            say(f"host {self._host.name(number)} is lost; stopping this host's command")
            self._end_command(self._limits.grace_seconds)

    def _kill_overdue(self) -> None:
        """Kill a command that was stopped but has not ended in time."""
        if self._kill_at and time.monotonic() > self._kill_at:
            self._command.signal_all(signal.SIGKILL)

    def _exit_code(self) -> int | None:
        """Return the exit code of this host if it can exit now, or None if it must wait."""
        code, now = self._command.code, time.monotonic()
        if code is None:
            return None
        if self._is_done or (code == 0 and not self._is_stopped and not self._waits_for_others(now)):
            if self._registry and not self._is_asked_to_end and self._registry.is_needed(now):
                return None
            self._peers.leave()
            return 0
        if self._lost_at:
            timeout = PEER_LOST if self._is_silent or now > self._lost_at + _END_SECONDS else None
            return ASKED_TO_END if self._is_asked_to_end else timeout
        if self._is_asked_to_end:
            own_code = ASKED_TO_END if self._is_stopped else code
            return None if self._command.is_saving else own_code
        if self._is_final:
            return self._own_code(code)
        if self._is_stopped or self._waits_for_others(now):
            return None
        has_waited = self._peers.have_met or now > self._started_at + self._limits.meet_seconds
        return self._own_code(code) if has_waited else None

    def _waits_for_others(self, now: float) -> bool:
        """Return whether this host's exit depends on a decision of the first host."""
        if not self._restarts_in_place or self._is_asked_to_end:
            return False
        # A host that cannot reach the first host, or a first host that the others do not reach, stops waiting.
        is_patient = now < max(self._started_at, self._ended_at) + self._limits.meet_seconds
        return self._peers.have_met or is_patient or (self._coordinator is not None and self._command.code != 0)

    def _own_code(self, code: int) -> int:
        """Return the exit code of a host that was not asked to end; 143 would not be counted as a failure.

        An elastic slice also stops with 143 when another one does and too few would be left.
        """
        # The message that another host was asked to end may be in transit.
        if code == ASKED_TO_END and not self._peers.asked.wait(self._limits.grace_seconds):
            own_code = PEER_LOST if self._host.elastic else FAILED
            group = "host of this slice" if self._host.elastic else "host"
            say(f"the command exited with {code}, but no {group} was asked to end; exiting with {own_code}")
            self._command.code = own_code
            return own_code
        return code
