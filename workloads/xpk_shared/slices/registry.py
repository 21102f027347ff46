"""Registry of the slices of an elastic workload: who is present, and where their hosts listen.

It runs in the supervisor of slice 0 host 0. The first host of every slice is connected to it:

    slice   host -> registry  {"slice": {"incarnation", "phase", "hosts"},   after each change
                               "continued": incarnations, "dropped": incarnations,
                               "progress": [seq, incarnations], "term"}
    progress host -> registry {"progress": [seq, incarnations], "term"}      after each view, of an active slice
    leave   host -> registry  {"leave": true}                                the slice stops on request
    done    host -> registry  {"done": true}                                 the run has finished
    view    registry -> hosts {"view": number, "slices", "founder", "done", "term"}  after each change
    evicted registry -> host  {"evicted": incarnation}                       it was dropped before

A slice whose connection ends, or that is silent, is dropped. If the registry itself is lost with its pod, or is frozen,
the slices keep their last view until they have connected to its successor. Meanwhile they may drop slices that they do
not hear, if no others can train then; `continued` tells the successor which ones are left, and `dropped` which ones its
predecessor had dropped. Of the active slices, the one with the most `progress` knows which ones train: each list that a
registry forms has a higher term than all before, and a step of a later term counts as the newer one. The founder says
that it is active before it begins the run, and begins once a view says so too: an earlier registry may have named
another one. A registry that was frozen is its own successor: it forgets who was present, and all slices connect again.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from xpk_shared.links.connection import line
from xpk_shared.links.endpoint import Beats, Handlers
from xpk_shared.links.handshake import Identity
from xpk_shared.links.hub import Hub
from xpk_shared.slices.roster import (
    ACTIVE,
    READY,
    Entry,
    Progress,
    Roster,
    RosterLimits,
    View,
    read_entry,
    read_progress,
)

BEATS = Beats(seconds=0.25)
AWAITED_SECONDS = 1.5  # silence after which an active slice is dropped: it may be frozen while the others wait
_POLL_SECONDS = 0.1
_SUSPENDED_SECONDS = 0.75  # for which this process did not run, so that slices may have left; less than they wait
_LEAVING_SECONDS = 1.0  # after that, in which the losses of those slices become known


def identity(job: str, secret: bytes) -> Identity:
    """Return the identity of a workload's slices; attempts differ between slices."""
    return Identity(("slices", job), 0, secret)


def silence_limit(view: View, number: int, beats: Beats = BEATS) -> float:
    """Return the seconds of silence after which a host of slice `number` is lost.

    The limit is short only while other active slices wait for this one, or may wait because it receives the state. A
    busy machine may keep a host silent for seconds, above all while a slice starts, and the loss of the only active
    slice would undo steps.
    """
    others = [entry for slice_id, entry in view.slices.items() if entry.phase == ACTIVE and slice_id != number]
    is_awaited = bool(others) and number in view.slices and view.slices[number].phase in (READY, ACTIVE)
    return min(AWAITED_SECONDS, beats.silent_seconds) if is_awaited else beats.silent_seconds


class Registry:
    """Server of the roster, on threads of its own."""

    def __init__(
        self,
        job: str,
        secret: bytes,
        num_slices: int,
        min_slices: int,
        *,
        limits: RosterLimits | None = None,
        beats: Beats = BEATS,
        hub: Callable[..., Hub] = Hub,
        wall: Callable[[], float] = time.time,
    ) -> None:
        handlers = Handlers(self._record_loss, lambda text, number: None, self._receive)
        # The registry itself is number 0, slice N is number N + 1.
        self._hub = hub(identity(job, secret), num_slices + 1, handlers, beats=beats)
        self._roster = Roster(num_slices, min_slices, limits or RosterLimits())
        self._num_slices, self._beats, self._wall = num_slices, beats, wall
        self._ended = dict.fromkeys(range(1, num_slices + 1), 0)  # by this registry: connections of each
        self._finished: set[int] = set()  # slices that have said so
        self._changes: deque[Callable[[float], None]] = deque()  # called with the time
        self._reports: deque[Callable[[], None]] = deque()  # of progress, which no view shows
        self._woke: float | None = None  # when the latest turn began
        # Until then, slices that are lost may have left while this process did not run.
        self._suspended_until = -math.inf
        self._may_form_at = -math.inf  # once what was sent to this process before is read
        self._wake = threading.Event()

    def open(self, address: str, port: int) -> None:
        """Listen at an address, "" for all of this host's. Raises AddressError."""
        self._hub.open(address, port)
        threading.Thread(target=self._run, name="registry", daemon=True).start()

    @property
    def has_finished(self) -> bool:
        """True if every slice has said that the run has finished, so that none needs the registry any more."""
        return len(self._finished) == self._num_slices

    def _run(self) -> None:
        self._woke = time.monotonic()
        while True:
            self._wake.wait(_POLL_SECONDS)
            self._wake.clear()
            self._turn(time.monotonic())

    def _turn(self, now: float) -> None:
        """Make all changes since the latest turn, and send the slices the new view."""
        has_changed = self._roster.is_forming or self._roster.needs_founder(now)
        suspended_seconds = 0.0 if self._woke is None else now - self._woke - _SUSPENDED_SECONDS
        if suspended_seconds > 0:
            self._suspended_until = now + _LEAVING_SECONDS
            self._may_form_at = now + min(suspended_seconds, _LEAVING_SECONDS)
            self._roster.postpone(suspended_seconds)
        self._woke = now
        while self._changes:
            self._changes.popleft()(now)
            has_changed = True
        while self._reports:
            self._reports.popleft()()
        may_form = self._roster.is_formed or now > self._may_form_at
        view = self._roster.view(now, self._least_term()) if has_changed and may_form else None
        if view:
            self._publish(view)

    def _least_term(self) -> int:
        """Return the term of a list that is formed now, by the clocks of nodes: registries follow in seconds."""
        return int(self._wall() * 1000)

    def _publish(self, view: View) -> None:
        limits = {number + 1: silence_limit(view, number, self._beats) for number in view.slices}
        self._hub.silence_limits = limits
        self._hub.send(line(view.as_json()))

    def _change(self, change: Callable[[float], None]) -> None:
        self._changes.append(change)
        self._wake.set()

    def _record_loss(self, number: int) -> None:
        self._change(lambda now: self._lose(number, now))

    def _lose(self, number: int, now: float) -> None:
        if now > self._suspended_until or not self._roster.is_formed:
            self._roster.lose(number - 1, now)
            return
        # The slices may have continued without this registry; what it knows of them is out of date.
        self._may_form_at = self._suspended_until
        self._roster.begin_again()
        self._disconnect()

    def _disconnect(self, excluded: int = -1) -> None:
        """End the connections of all slices but one, so that they register again, whatever they do by then."""
        self._ended = {slice_number: ended + (slice_number != excluded) for slice_number, ended in self._ended.items()}
        self._hub.silence_limits = {}
        self._hub.shut_down(excluded)

    def _receive(self, message: dict[str, Any], number: int) -> None:
        if "slice" in message:
            entry, progress = read_entry(message["slice"]), read_progress(message)
            continued, dropped = ([str(name) for name in message.get(key, ())] for key in ("continued", "dropped"))
            ended = self._ended[number]

            def take(now: float) -> None:
                if ended == self._ended[number]:  # else said on a connection that has been ended since
                    self._take(number, entry, continued, dropped, progress, now)

            self._change(take)
        elif "progress" in message:
            progress = read_progress(message)
            self._reports.append(lambda: self._roster.report(number - 1, progress))
        elif "leave" in message:
            self._change(lambda now: self._roster.drop(number - 1))
        elif "done" in message:
            self._finished.add(number)
            self._change(lambda now: self._roster.finish())

    def _take(
        self, number: int, entry: Entry, continued: list[str], dropped: list[str], progress: Progress, now: float
    ) -> None:
        if self._roster.is_superseded(number - 1, entry, continued, progress):
            self._roster.supersede()
            self._disconnect(excluded=number)
        if not self._roster.take(number - 1, entry, now, continued, dropped, progress):
            self._hub.reply(number, {"evicted": entry.incarnation})
        for evicted, incarnation in self._roster.pop_evicted():
            self._hub.reply(evicted + 1, {"evicted": incarnation})
