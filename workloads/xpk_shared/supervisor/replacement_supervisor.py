"""Supervisor of a host that keeps its pod when another slice is replaced.

Hosts of the slice of a host that is lost or asked to end get new pods with it. All other hosts end their commands and
wait for the first host's next order. If the first host is the one that is replaced, they connect to the next one. If
Kubernetes creates the pods of all slices again, because a host has failed by itself, it ends the waiting hosts.
"""

from __future__ import annotations

import time
from typing import Any

from xpk_shared.supervisor.command import NoCommand
from xpk_shared.supervisor.host import say
from xpk_shared.supervisor.names import PEER_LOST
from xpk_shared.supervisor.replacement_coordinator import NEVER, ReplacingCoordinator
from xpk_shared.supervisor.restarts import End
from xpk_shared.supervisor.signals import END
from xpk_shared.supervisor.supervision import ASKED_TO_END, FAILED, Supervisor


class ReplacingSupervisor(Supervisor):
    """Supervisor of one host's command over all attempts, also over those before which a slice was replaced."""

    _decisions = ReplacingCoordinator
    _coordinator: ReplacingCoordinator | None
    _done_at = 0.0

    def _begin_first(self) -> None:
        """Begin the first attempt, or wait for the first host's order if the others may be in a later one."""
        if not self._host.slice_attempt:
            super()._begin_first()
            return
        say("this slice was replaced; waiting for the hosts of the others")
        self._command = NoCommand()
        self._restarts, self._is_stopped, self._has_reported = NEVER, True, True
        self._started_at = time.monotonic()
        self._kill_at, self._ended_at = 0.0, 0.0

    def connect(self) -> None:
        """Listen for the other hosts, or connect to the first one, in the background."""
        self._peers.connect(self._restarts, runs=self._restarts != NEVER)

    @property
    def _is_leaving(self) -> bool:
        return self._peers.is_slice_asked.is_set()

    def _report(self) -> None:
        """Report the end of the command to the first host; that of a host which was asked to end too.

        The processes of a command that may save are left alone until they have, or their time is over.
        """
        if self._command.is_saving and (self._is_leaving or time.monotonic() < self._kill_at):
            return
        super()._report()

    @property
    def _first_host_decides(self) -> bool:
        return self._may_restart_in_place

    def _stop(self, order: dict[str, Any]) -> None:
        """Stop the command, because that of another host has failed, or because a slice will be replaced."""
        if not order.get("replaces"):
            super()._stop(order)
        elif self._restarts_in_place and self._command.code is None:
            self._stop_for_replacement(order["number"], saves=bool(order.get("saves")))
        elif self._restarts_in_place:
            self._is_stopped = True  # what its own command has ended with does not matter any more

    def _stop_for_replacement(self, number: int, *, saves: bool) -> None:
        """Stop the command until the slice of a host has been replaced. `saves`: it may need its whole grace period."""
        slice_id, _ = self._host.place(number)
        again = f"this host's command starts again once slice {slice_id} has new pods"
        say(f"host {self._host.name(number)} is gone; {again}")
        self._is_stopped = True
        self._end_command(self._host.grace_seconds if saves else self._limits.grace_seconds)

    def _record(self, order: dict[str, Any], cause: End | None) -> None:
        """Record a restart; hosts of a new slice have not passed the checks that a command begins with."""
        super()._record(order, cause)
        if order.pop("replaced", False):
            order["passed"] = False

    def _forward(self, number: int) -> None:
        """Forward a signal, unless it is the first request to end, and the command has got one already."""
        if number in END and self._kill_at and self._command.code is None and not self._is_asked_to_end:
            self._is_asked_to_end = True
            self._peers.leave(asked=True)
        else:
            super()._forward(number)

    def _restart(self, order: dict[str, Any]) -> None:
        """Start the command for the next attempt, unless it is this one, or this host will be recreated."""
        if order["start"] != self._restarts and self._restarts_in_place:
            super()._restart(order)

    def _note(self, order: dict[str, Any]) -> None:
        """Share the fate of a host of this slice that is gone."""
        if "gone" not in order or order["gone"] == self._host.number:
            return
        is_own = order["generation"] == self._host.slice_attempt
        if is_own and self._host.is_beside(order["gone"]) and not self._is_leaving:
            self._peers.lost.append(order["gone"])

    def _follow_first_host(self) -> None:
        """Connect to the next first host after this one is lost or has left, once the command has ended."""
        if not self._peers.is_cut.is_set() or not self._restarts_in_place or self._is_done or self._is_asked_to_end:
            return
        if self._command.code is not None and self._has_reported:
            self._is_stopped = True
            self._peers.connect_again(self._restarts)
        elif self._command.code is None and not self._is_stopped:
            self._stop_for_replacement(0, saves=self._peers.asked.is_set())

    def _exit_code(self) -> int | None:
        """Return the exit code of this host if it can exit now, or None if it must wait."""
        code = self._code_to_exit_with()
        if code is not None and self._is_leaving:
            self._peers.leave()
        return code

    def _code_to_exit_with(self) -> int | None:
        """Return the exit code of this host, None if it must wait.

        A host that succeeds after its slice was asked to end has not succeeded unless all others do as well:
        Kubernetes would not replace its slice.
        """
        now, code = time.monotonic(), self._command.code
        if isinstance(self._command, NoCommand) and not (self._is_asked_to_end or self._is_done):
            if not self._peers.is_linked:
                return FAILED
            if self._is_alone and self._has_waited(now):
                say("no other host has connected; exiting so that all hosts are recreated")
                return PEER_LOST
        if self._is_done and self._coordinator and not self._is_asked_to_end:
            self._done_at = self._done_at or now
            if not self._coordinator.is_over and now < self._done_at + self._limits.join_seconds:
                return None
        if code == 0 and self._is_leaving and not self._is_done:
            return None if now < self._ended_at + self._limits.finish_seconds else ASKED_TO_END
        if code == 0 and self._peers.lost and not self._is_done:
            self._is_stopped = True  # its slice will be replaced, so this success does not count
        return super()._exit_code()

    def _has_waited(self, now: float) -> bool:
        """Return whether this host has waited for the others for long: longer if they may wait for machines."""
        at, limits = max(self._started_at, self._peers.unresolved_at), self._limits
        is_ignored = self._host.number != 0 and now > at + limits.join_seconds
        return is_ignored or now > self._started_at + limits.absent_seconds

    @property
    def _is_alone(self) -> bool:
        """True if this host has met none of the others."""
        return len(self._peers.absent) == (1 if self._host.number else self._host.hosts - 1)
