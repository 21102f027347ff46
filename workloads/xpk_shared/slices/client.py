"""A slice's connection to the registry, kept by its first host."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from xpk_shared.links.endpoint import Beats, Handlers
from xpk_shared.links.errors import PeerAbsent
from xpk_shared.links.handshake import Identity
from xpk_shared.links.member import Member
from xpk_shared.slices.registry import AWAITED_SECONDS, BEATS, silence_limit
from xpk_shared.slices.roster import ACTIVE, Entry, Progress, View, read_view

_RETRY_SECONDS = 0.5
_HANDSHAKE_SECONDS = 2.0  # the registry may be lost meanwhile, and its successor waits only some seconds for the slices
_SUCCESSION_SECONDS = 4.0  # less than RosterLimits.settle_seconds
_DIAL_SECONDS = 2.0  # for an attempt to connect: the name may still resolve to the registry's former pod


class RegistryClient:
    """Connection of slice `number`; it connects again when it is lost. Callbacks run on background threads."""

    def __init__(
        self,
        identity: Identity,
        number: int,
        entry: Entry,
        *,
        on_view: Callable[[View], None],
        on_evicted: Callable[[], None],
        on_lost: Callable[[], None] = lambda: None,
        progress: Callable[[], Progress] = Progress,
        beats: Beats = BEATS,
        member: Callable[..., Member] = Member,
    ) -> None:
        """`progress` returns how far this slice is in the run, and with which others."""
        self._make_member, self._progress = member, progress
        self._identity, self._number, self._entry, self._beats = identity, number, entry, beats
        self._on_view, self._on_evicted, self._on_lost = on_view, on_evicted, on_lost
        self._member: Member | None = None
        self._view = View()  # the newest one of this connection
        self._known = View()  # the newest one of any connection
        self._dropped: dict[int, str] = {}
        self._continued: list[str] = []
        self._lock, self._is_lost, self._is_closed = threading.Lock(), threading.Event(), False

    @property
    def is_connected(self) -> bool:
        """True while this slice is connected to the registry, and is in the view that it has received."""
        return self._member is not None and self._is_in_view

    @property
    def dropped(self) -> list[str]:
        """Incarnations that the registry has dropped, one for each slice."""
        return list(self._dropped.values())

    def connect(self, resolve: Callable[[], str], port: int) -> None:
        """Connect in the background; `resolve` returns the registry's current address."""
        threading.Thread(target=self._run, args=(resolve, port), name="registry-client", daemon=True).start()

    def update(self, entry: Entry) -> None:
        """Tell the registry what has changed about this slice."""
        with self._lock:
            self._entry = entry
            self._limit_silence()
            self._send_entry()

    def limit_silence(self) -> None:
        """Adapt the time limit for the registry's silence to the slices that have become active."""
        with self._lock:
            self._limit_silence()

    def continue_with(self, incarnations: Iterable[str]) -> None:
        """Tell the next registry which slices have continued without one."""
        with self._lock:
            if not self.is_connected:
                self._continued = list(incarnations)
                self._send_entry()

    def leave(self, *, is_done: bool) -> None:
        """Tell the registry that this slice leaves, and whether the run has finished."""
        with self._lock:
            self._is_closed = True
            self._send({"done": True} if is_done else {"leave": True})
            if self._member:
                self._member.leave()

    @property
    def _is_in_view(self) -> bool:
        return self._view.has(self._number, self._entry.incarnation)

    def _send_entry(self) -> None:
        said = {"continued": self._continued, "dropped": self.dropped}
        self._send({"slice": self._entry.as_json()} | said | self._progress().as_json())

    def _send(self, message: dict[str, Any]) -> None:
        if self._member:
            self._member.send_to_hub(message)

    def _run(self, resolve: Callable[[], str], port: int) -> None:
        while not self._is_closed:
            member = self._begin()
            try:
                member.join(resolve(), port, math.inf, resolve)
            except (OSError, PeerAbsent):  # the name does not resolve while the registry's pod is replaced
                time.sleep(_RETRY_SECONDS)
                continue
            self._enter(member)
            self._is_lost.wait()
            self._leave_lost(member)

    def _begin(self) -> Member:
        """Return the end of a new connection."""
        self._is_lost.clear()
        self._view = View()
        handlers = Handlers(self._record_loss, lambda text, number: None, self._receive)
        number = self._number + 1
        limits = {"dial_seconds": _DIAL_SECONDS, "handshake_seconds": _HANDSHAKE_SECONDS}
        return self._make_member(self._identity, number, handlers, beats=self._beats, **limits)

    def _enter(self, member: Member) -> None:
        """Register this slice on a new connection."""
        with self._lock:
            self._member = member
            self._limit_silence()
            self._send_entry()

    def _leave_lost(self, member: Member) -> None:
        """Give up a connection that is lost."""
        with self._lock:
            self._member = None
        member.leave()  # ends its thread of heartbeats
        if not self._is_closed:
            self._on_lost()

    def _limit_silence(self) -> None:
        """Wait for the registry as long as for a slice, but no longer than its successor waits for an active slice.

        A registry that has sent no view may form one without this active slice.
        """
        if self._member:
            limit = silence_limit(self._newest_view(), self._number, self._beats)
            if self._entry.phase == ACTIVE:
                limit = min(limit, _SUCCESSION_SECONDS if self._view.number else AWAITED_SECONDS)
            self._member.silent_seconds = limit

    def _newest_view(self) -> View:
        """Return the view with the slices that have become active since, of which the registry may never tell."""
        active = self._progress().active
        slices = {
            number: replace(entry, phase=ACTIVE) if entry.incarnation in active else entry
            for number, entry in self._view.slices.items()
        }
        return replace(self._view, slices=slices)

    def _absent(self, incarnations: dict[int, str]) -> dict[int, str]:
        """Return those that are not in the view."""
        return {slice_id: name for slice_id, name in incarnations.items() if not self._view.has(slice_id, name)}

    def _record_loss(self, number: int) -> None:
        if number == 0:  # the registry; other slices' losses come as views
            self._is_lost.set()

    def _receive(self, message: dict[str, Any], number: int) -> None:
        if "view" in message:
            with self._lock:
                self._view = read_view(message)
                known = {slice_id: entry.incarnation for slice_id, entry in self._known.slices.items()}
                self._dropped = self._absent(self._dropped) | self._absent(known)
                self._known = self._view
                self._continued = [] if self._is_in_view else self._continued
                self._limit_silence()
                if self._entry.phase == ACTIVE:
                    self._send(self._progress().as_json())
            self._on_view(self._view)
        elif message.get("evicted") == self._entry.incarnation:
            self._on_evicted()
