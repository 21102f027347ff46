"""The slices of an elastic run, and the order of events that all hosts of a slice see.

A slice is active while it is both granted and present. It is granted by a commit, at the end of a step, so all active
slices grant it at the same step; it is present while the registry sees it. The slice that has been active for longest
leads: it decides on stops, names the slices to grant and writes checkpoints and metrics.

All hosts of a slice run the same programs in the same order. Therefore process 0 of the slice announces, in one order:

    view      the slices that are present
    registry  the registry is lost: until the next view, the loss of another slice may not be known; also with a view
    grant     slices that become active without a commit: the first one of a run
    order     shares of a reduction that this slice computes beside its own, because their slices are not active
    commit    a reduction is complete on all hosts of the slice
"""

import functools
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trainer.hosts.bootstrap import Host
from trainer.hosts.peers import Peers
from trainer.hosts.registry_loss import FROZEN, REGISTRY_SLICE, RegistryLoss
from xpk_shared.slices.client import RegistryClient
from xpk_shared.slices.registry import identity
from xpk_shared.slices.roster import ACTIVE, WAITING, Entry, Progress, View, quorum, read_view

FOUNDER, JOINER, DONE = "founder", "joiner", "done"  # roles of a slice before it is active
_KEY = "slices"  # of announcements and reports among the hosts of the slice
_DROPPED = "the other slices continue without this one"


Peer = tuple[int, str]  # slice and incarnation


class Seq(NamedTuple):
    """Position of a reduction in the run."""

    step: int  # finished steps before it, or the step itself for TRAIN
    phase: int
    nth: int = 0


TRAIN, HOLD, COMPARE, EVALUATE, FINISH = range(5)  # phases of a step, in this order


class Commit(NamedTuple):
    """The newest completed reduction, and what the leading slice decided in it."""

    seq: Seq
    flags: dict[str, Any]

    @property
    def term(self) -> int:
        """Term of the view in which the newest step was made."""
        return int(self.flags.get("term", 0))


def shares_of(number: int, active: Sequence[int], replicas: int) -> list[int]:
    """Return the virtual replicas that a slice computes: its own, and its part of those of inactive slices."""
    ordered = sorted(active)
    orphans = [replica for replica in range(replicas) if replica not in active]
    return [number] + [orphan for nth, orphan in enumerate(orphans) if ordered[nth % len(ordered)] == number]


class Membership:
    """One host's view of the slices. `changed` guards it, and is notified after every change."""

    def __init__(
        self,
        host: Host,
        peers: Peers,
        on_dropped: Callable[[str], None],
        *,
        client: Callable[..., RegistryClient] = RegistryClient,
        registry_loss: Callable[..., RegistryLoss] = RegistryLoss,
    ) -> None:
        """`on_dropped` ends this host for a reason."""
        self.changed = threading.Condition()
        self.view, self.own = View(), (host.slice_id, "")
        self.commit = Commit(Seq(-1, TRAIN), {})
        self.is_view_current = True  # False from the loss of the registry to the next view
        self.is_leading = False  # as decided in the newest commit
        self.version = 0  # of everything that a reduction waits for
        self.views: list[Callable[[View], None]] = []  # called with each new view
        self.is_heard: Callable[[Peer], bool] = lambda peer: True  # the host of equal number in another slice
        self._host, self._peers, self._on_dropped = host, peers, on_dropped
        self._granted: list[Peer] = []
        self._orders: dict[Seq, list[int]] = {}
        self._leader: _Leader | None = None
        if host.process_id == 0:
            self._leader = _Leader(self, host, peers, client, registry_loss)
        peers.handle(_KEY, self._leader.take_report if self._leader else lambda process, value: None, self._take)

    def enter(self, addresses: list[tuple[str, int]] | None, incarnation: str, resolve: Callable[[], str]) -> None:
        """Register this slice; `addresses` are those of its hosts, on process 0."""
        self.own = self._host.slice_id, incarnation
        if self._leader:
            self._leader.register(Entry(incarnation, WAITING, tuple(addresses or ())), resolve)

    @property
    def role(self) -> str:
        """Role of this slice before it is active: FOUNDER, JOINER, DONE if the run has finished, or "" if unknown."""
        if self.view.is_done:
            return DONE
        if self.view.has_active:
            return JOINER
        return FOUNDER if self.view.founder and self.view.founder == self.own[1] else ""

    def wait_for_role(self) -> str:
        """Wait until the role of this slice is known, and return it."""
        with self.changed:
            self.changed.wait_for(lambda: self.role)
            return self.role

    def set_phase(self, phase: str) -> None:
        """Tell the other slices how far this one is; on process 0, else nothing happens."""
        if self._leader:
            self._leader.set_phase(phase)

    @property
    def is_accepted(self) -> bool:
        """True if the registry shows this slice as active."""
        entry = self.view.slices.get(self.own[0])
        return entry is not None and (entry.incarnation, entry.phase) == (self.own[1], ACTIVE)

    def grant_self(self) -> None:
        """Make this slice, the first one of the run, active, once the registry shows it as active."""
        if self._leader:
            with self.changed:
                self.changed.wait_for(lambda: self.is_accepted)
            self._leader.announce({"grant": [list(self.own)]})
        with self.changed:
            self.changed.wait_for(lambda: self.own in self._granted)

    def adopt(self, granted: Sequence[Peer], commit: Commit) -> None:
        """Continue where an active slice is, from which this one has the state."""
        with self.changed:
            self._granted, self.commit = list(granted), commit
            self._notify()

    def leave(self, *, is_done: bool) -> None:
        """Leave the other slices."""
        if self._leader:
            self._leader.leave(is_done=is_done)

    @property
    def active(self) -> list[Peer]:
        """The active slices; the first one leads."""
        return [peer for peer in self._granted if self.view.has(*peer)]

    @property
    def granted(self) -> list[Peer]:
        """The slices that are active or will be as soon as this host knows them, in the order of their grants."""
        return list(self._granted)

    def is_lost(self, peer: Peer) -> bool:
        """Return whether a slice is absent or, while nobody says so, is not heard; only first hosts hear the others."""
        is_silent = self._leader is not None and not self.is_view_current and not self.is_heard(peer)
        return is_silent or not self.view.has(*peer)

    @property
    def is_only_group(self) -> bool:
        """True if no other slices can train without this one: the registry is connected, or they are too few."""
        return self._leader is None or self._leader.is_connected or self.is_quorum(len(self.active))

    def is_quorum(self, count: int) -> bool:
        """Return whether so many slices may continue without the registry: the others are too few to do the same."""
        return count >= quorum(self._host.num_slices, self._host.min_slices)

    def may_finish(self, seq: Seq) -> bool:
        """Return whether a reduction may be completed: not a step, if so few slices are present that others may train.

        A network that is split may hide those from the registry, which they then continue without.
        """
        return seq.phase != TRAIN or not self._has_too_few

    @property
    def _has_too_few(self) -> bool:
        return not self.view.is_done and len(self.view.slices) < self._host.min_slices

    @property
    def may_wait(self) -> bool:
        """True while a step may wait for lost slices, however long: too few are present, or nobody tells of losses."""
        return (self._has_too_few and self.own in self._granted) or not self.is_view_current

    @property
    def dropped(self) -> list[str]:
        """Incarnations that the registry has dropped, or this slice while it is lost; known to process 0."""
        return self._leader.dropped if self._leader else []

    def hear(self, peer: Peer, dropped: Sequence[str]) -> None:
        """Take note of what another slice has dropped."""
        if self._leader:
            self._leader.hear(peer, dropped)

    def set_digest(self, active: Sequence[Peer]) -> str:
        """Return a name of a set of slices."""
        return hashlib.sha256(repr(sorted(active)).encode()).hexdigest()[:12]

    def begin(self, seq: Seq) -> None:
        """Begin a reduction: from now on, the slice takes over the shares of slices that are lost."""
        if self._leader:
            self._leader.begin(seq)

    def orders(self, seq: Seq) -> list[int]:
        """Return the shares that this slice computes in a reduction, in order."""
        return [self.own[0], *self._orders.get(seq, ())]

    def report_done(self, seq: Seq, flags: dict[str, Any]) -> None:
        """Report that this host has the result of a reduction."""
        self._peers.report(_KEY, [list(seq), flags])

    def notify(self) -> None:
        """Wake the threads that wait for a change."""
        with self.changed:
            self._notify()

    def _notify(self) -> None:
        self.version += 1
        self.changed.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        """Take an announcement of this slice's process 0."""
        with self.changed:
            if "view" in message:
                self.view, self.is_view_current = read_view(message), "registry" not in message
            elif "registry" in message:
                self.is_view_current = False
            elif "commit" in message:
                seq, flags = Seq(*message["commit"]), message["flags"]
                self.commit = Commit(seq, flags)
                self._grant(flags.get("grant", ()))
                self._orders = {other: shares for other, shares in self._orders.items() if other >= seq}
            elif "grant" in message:
                self._grant(message["grant"])
            elif "order" in message:
                self._orders.setdefault(Seq(*message["order"]), []).extend(message["shares"])
            view, is_dropped = self.view, self._is_dropped()
            self._notify()
        if self._leader and (message.get("grant") or message.get("flags", {}).get("grant")):
            self._leader.limit_silence()
        if "view" in message:
            for callback in self.views:
                callback(view)
        if is_dropped:
            self.end_dropped()

    def end_dropped(self, reason: str = _DROPPED) -> None:
        """End this host, whose slice the others have dropped or can drop, unless all hosts know that it leaves."""
        if not self._is_leaving:
            self._on_dropped(reason)

    @property
    def _is_leaving(self) -> bool:
        """True from the decision that this slice stops, or that the run has ended."""
        flags = self.commit.flags
        return bool(flags.get("saved")) or flags.get("stop") == "all" or self.own[0] in flags.get("stop", ())

    def _grant(self, peers: Sequence[Sequence[Any]]) -> None:
        self._granted += [(slice_id, incarnation) for slice_id, incarnation in peers]

    def _is_dropped(self) -> bool:
        """Return whether this slice was active, and the others continue without it."""
        return self.own in self._granted and self.view.number > 0 and not self.view.has(*self.own)


class _Leader:
    """Process 0 of a slice: decides on the order of announcements."""

    def __init__(
        self,
        membership: Membership,
        host: Host,
        peers: Peers,
        client: Callable[..., RegistryClient],
        registry_loss: Callable[..., RegistryLoss],
    ) -> None:
        self._membership, self._host, self._peers = membership, host, peers
        self._make_client, self._make_loss = client, registry_loss
        self._announcing = threading.RLock()
        self._client: RegistryClient | None = None
        self._loss: RegistryLoss | None = None
        self._entry = Entry("", WAITING, ())
        self._seq: Seq | None = None
        self._done: dict[int, Seq] = {}
        self._flags: dict[str, Any] = {}
        self._ordered: set[int] = set()

    def register(self, entry: Entry, resolve: Callable[[], str]) -> None:
        self._entry = entry
        port = int(self._host.registry.rpartition(":")[2])
        self._client = self._make_client(
            identity(self._host.job_id, self._host.secret),
            self._host.slice_id,
            entry,
            on_view=self._take_view,
            on_evicted=self._membership.end_dropped,
            on_lost=self._lose_registry,
            progress=self._progress,
        )
        is_own = self._host.slice_id == REGISTRY_SLICE and self._host.processes > 1  # else no host would end this one
        on_frozen = functools.partial(self._membership.end_dropped, FROZEN) if is_own else None
        self._loss = self._make_loss(self._membership, self._client, self._continue_without, on_frozen)
        self._loss.start()
        self._client.connect(resolve, port)

    @property
    def dropped(self) -> list[str]:
        return [*self._client.dropped, *self._loss.dropped] if self._client and self._loss else []

    def hear(self, peer: Peer, dropped: Sequence[str]) -> None:
        if self._loss:
            self._loss.hear(peer, dropped)

    def limit_silence(self) -> None:
        if self._client:
            self._client.limit_silence()

    @property
    def is_connected(self) -> bool:
        return self._client is None or self._client.is_connected

    def set_phase(self, phase: str) -> None:
        self._entry = Entry(self._entry.incarnation, phase, self._entry.hosts)
        if self._client:
            self._client.update(self._entry)

    def leave(self, *, is_done: bool) -> None:
        if self._client:
            self._client.leave(is_done=is_done)

    def announce(self, message: dict[str, Any]) -> None:
        with self._announcing:
            self._peers.announce(_KEY, message)
            self._order_shares()

    def begin(self, seq: Seq) -> None:
        with self._announcing:
            self._seq, self._ordered = seq, set()
            self._order_shares()

    def take_report(self, process: int, value: Any) -> None:
        seq, flags = Seq(*value[0]), value[1]
        with self._announcing:
            self._done[process] = seq
            if process == 0:
                self._flags = flags
            if len(self._done) == self._host.processes and set(self._done.values()) == {seq}:
                self._done, self._seq = {}, None
                self.announce({"commit": list(seq), "flags": self._flags})

    def _take_view(self, view: View) -> None:
        if view.number:
            self.announce(view.as_json())

    def _progress(self) -> Progress:
        commit, active = self._membership.commit, self._membership.active
        return Progress(commit.seq, frozenset(incarnation for _, incarnation in active), commit.term)

    def _continue_without(self, view: View) -> None:
        """Announce a view of this slice, unless the registry is connected again."""
        with self._announcing:
            if not self.is_connected:
                self.announce(view.as_json() | {"registry": "lost"})

    def _lose_registry(self) -> None:
        self.announce({"registry": "lost"})
        if self._loss:
            self._loss.begin()

    def _order_shares(self) -> None:
        """Order the shares of the reduction in progress whose slices are not active."""
        active = self._membership.active
        if self._seq is None or self._membership.own not in active:
            return
        shares = shares_of(self._host.slice_id, [number for number, _ in active], self._host.num_slices)
        new = [share for share in shares[1:] if share not in self._ordered]
        if new:
            self._ordered.update(new)
            self._peers.announce(_KEY, {"order": list(self._seq), "shares": new})


def new_incarnation() -> str:
    """Return a name for this start of a slice."""
    return f"{int(time.time()):x}-{secrets.token_hex(4)}"
