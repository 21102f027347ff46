"""Sums over the shares of all virtual replicas, which survive the loss of slices.

Every active slice owns one chunk of the vectors. A host sends each chunk of its shares to the host of equal number in
the chunk's owner (`piece`); the owner adds the pieces in the order of replicas and sends the sum to all (`sum`). So
every number crosses twice, as in a ring, and the order of the additions does not depend on the slices.

When the set of active slices changes before a slice has the result, the remaining ones compute the missing shares and
exchange all pieces again, under the new set. A slice that has the result already sends it to those that ask (`whole`):
the bits are the same. A result counts once all hosts of the slice have it (`commit`); a slice is at most one reduction
ahead of another, because each needs the pieces of all.
"""

import dataclasses
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.elastic.connections import Connections, as_bytes
from trainer.hosts.membership import Commit, Membership, Peer, Seq, shares_of

Vector = npt.NDArray[Any]  # one-dimensional
_POLL_SECONDS = 1.0


class Share(NamedTuple):
    """One share: this host's part of the gradient, and sums of the whole share."""

    vector: Vector
    scalars: list[float]


class Result(NamedTuple):
    """The sum of all shares, and the decisions of the leading slice."""

    vector: Vector
    scalars: list[float]
    flags: dict[str, Any]


Facts = dict[str, Any]  # of a slice, for the decision of the leading one
Decide = Callable[[Mapping[int, Facts]], dict[str, Any]]  # facts by slice -> flags


@dataclasses.dataclass
class _Attempt:
    """The exchange of one reduction under one set of active slices."""

    seq: Seq
    active: list[Peer]  # in the order of their numbers
    leader: Peer
    own: Peer
    digest: str
    sent: dict[tuple[Peer, str], int] = dataclasses.field(default_factory=dict)  # (to, what) -> connection
    chunk: Vector | None = None  # the sum of the own chunk
    scalars: list[float] = dataclasses.field(default_factory=list)
    flags: dict[str, Any] | None = None

    @property
    def others(self) -> list[Peer]:
        """The other active slices."""
        return [peer for peer in self.active if peer != self.own]

    def bounds(self, peer: Peer, size: int) -> slice:
        """Return the part of a vector that a slice owns."""
        nth, count = self.active.index(peer), len(self.active)
        return slice(nth * size // count, (nth + 1) * size // count)


@dataclasses.dataclass
class _Call:
    """A reduction in progress on this host."""

    seq: Seq
    read_facts: Callable[[], Facts]
    decide: Decide
    shares: dict[int, Share] = dataclasses.field(default_factory=dict)  # computed so far
    facts: Facts | None = None
    attempt: _Attempt | None = None
    version: int = -1  # of the membership, at the newest look at it


class _Inbox:
    """Frames received for reductions that this host has not completed."""

    def __init__(self) -> None:
        self.pieces: dict[tuple[Seq, str], dict[int, tuple[Share, Facts, Peer]]] = {}
        self.sums: dict[tuple[Seq, str], dict[Peer, tuple[Vector, dict[str, Any] | None]]] = {}
        self.wholes: dict[Seq, Result] = {}

    def drop(self, seq: Seq) -> None:
        """Remove what belongs to a completed reduction, and to earlier ones."""
        self.pieces = {key: value for key, value in self.pieces.items() if key[0] > seq}
        self.sums = {key: value for key, value in self.sums.items() if key[0] > seq}
        self.wholes = {key: value for key, value in self.wholes.items() if key > seq}


class Reductions:
    """The reductions of one host; `dtype` is the type of the vectors' numbers."""

    def __init__(self, membership: Membership, connections: Connections, replicas: int, dtype: Any) -> None:
        self._membership, self._connections = membership, connections
        self._replicas, self._dtype = replicas, np.dtype(dtype)
        self._inbox = _Inbox()
        self._newest: tuple[Seq, Result] | None = None  # the newest result of this host
        self._asked: queue.SimpleQueue[Peer] = queue.SimpleQueue()  # slices that need the newest result
        self._answered: set[tuple[Peer, Seq, int]] = set()  # with the number of the connection
        threading.Thread(target=self._answer, name="exchange-answer", daemon=True).start()

    @property
    def has_pieces(self) -> bool:
        """True if another slice counts on this one."""
        return bool(self._inbox.pieces)

    def __call__(
        self, seq: Seq, compute: Callable[[int], Share], read_facts: Callable[[], Facts], decide: Decide
    ) -> Result:
        """Return the sum of the shares of all replicas; `compute` returns one.

        All hosts of the slice call it with the same `seq`, and compute the same shares in the same order. The facts
        are read once the shares are computed. `decide` counts on the host of number 0 in the leading slice.
        """
        call, membership = self._begin(seq, read_facts, decide), self._membership
        while True:
            missing, result = self._advance(call)
            if result is not None:
                return result
            if missing is not None:
                call.shares[missing] = compute(missing)
                continue
            with membership.changed:
                if membership.version == call.version:
                    membership.changed.wait(_POLL_SECONDS)

    def _begin(self, seq: Seq, read_facts: Callable[[], Facts], decide: Decide) -> _Call:
        self._membership.begin(seq)
        return _Call(seq, read_facts, decide)

    def _advance(self, call: _Call) -> tuple[int | None, Result | None]:
        """Do what can be done now; return a replica to compute first, or the result once it is committed."""
        membership = self._membership
        with membership.changed:
            call.version = membership.version
            missing = [replica for replica in membership.orders(call.seq) if replica not in call.shares]
            is_committed = membership.commit.seq == call.seq
            active, may_finish = membership.active, membership.may_finish(call.seq)
        if missing:
            return missing[0], None
        if is_committed and self._newest:
            return None, Result(*self._newest[1][:2], membership.commit.flags)
        is_complete = self._newest is not None and self._newest[0] == call.seq
        if may_finish and not is_complete and membership.own in active:  # else the others continue without this slice
            digest = membership.set_digest(active)
            if call.attempt is None or call.attempt.digest != digest:
                call.attempt = _Attempt(call.seq, sorted(active), active[0], membership.own, digest)
            call.facts = call.read_facts() if call.facts is None else call.facts
            self._exchange(call.attempt, call.shares, call.facts, call.decide)
        return None, None

    def receive(self, peer: Peer, header: dict[str, Any], payload: memoryview) -> None:
        """Take a frame from another slice; on a background thread."""
        kind, seq = header["kind"], Seq(*header["seq"])
        vector = np.frombuffer(payload, self._dtype)
        with self._membership.changed:
            newest = self._newest
            if newest and seq <= newest[0]:
                if kind == "piece" and seq == newest[0]:
                    self._asked.put(peer)
                return
            if kind == "piece":
                pieces = self._inbox.pieces.setdefault((seq, header["set"]), {})
                pieces[int(header["replica"])] = Share(vector, header["scalars"]), header["facts"], peer
            elif kind == "sum":
                sums = self._inbox.sums.setdefault((seq, header["set"]), {})
                sums[peer] = vector, header["flags"]
            elif kind == "whole":
                self._inbox.wholes[seq] = Result(vector, header["scalars"], header["flags"])
        self._membership.notify()

    def _exchange(self, attempt: _Attempt, shares: Mapping[int, Share], facts: Facts, decide: Decide) -> None:
        """Do what can be done now: send pieces, add those received, send the sum, and complete the result."""
        with self._membership.changed:
            whole = self._inbox.wholes.get(attempt.seq)
        if whole is None and all(replica in shares for replica in self._assigned(attempt)):
            self._send_pieces(attempt, shares, facts)
            self._add_chunk(attempt, shares, facts, decide)
            self._send_sum(attempt)
            whole = self._complete(attempt, shares)
        if whole is not None:
            self._keep(attempt, whole)

    def _send_pieces(self, attempt: _Attempt, shares: Mapping[int, Share], facts: Facts) -> None:
        for peer in attempt.others:
            for replica in self._assigned(attempt):
                share = shares[replica]
                header = {"kind": "piece", "replica": replica, "scalars": share.scalars, "facts": facts}
                part = share.vector[attempt.bounds(peer, share.vector.size)]
                self._send(attempt, peer, f"piece {replica}", header, part)

    def _assigned(self, attempt: _Attempt) -> list[int]:
        """Return the replicas whose pieces this slice sends under the attempt's set of slices."""
        return shares_of(attempt.own[0], [number for number, _ in attempt.active], self._replicas)

    def _send(self, attempt: _Attempt, peer: Peer, what: str, header: dict[str, Any], part: Vector) -> None:
        """Send a frame, unless it was sent on this connection before."""
        generation = self._connections.generation(peer)
        if generation and attempt.sent.get((peer, what)) != generation:
            attempt.sent[peer, what] = generation
            header |= {"seq": list(attempt.seq), "set": attempt.digest}
            self._connections.send(peer, header, as_bytes(part))

    def _add_chunk(self, attempt: _Attempt, shares: Mapping[int, Share], facts: Facts, decide: Decide) -> None:
        """Add the own chunk of all replicas, once all pieces are here."""
        if attempt.chunk is not None:
            return
        with self._membership.changed:
            pieces = dict(self._inbox.pieces.get((attempt.seq, attempt.digest), {}))
        own = {replica: shares[replica] for replica in self._assigned(attempt)}
        if len(own.keys() | pieces.keys()) < self._replicas:
            return
        bounds = attempt.bounds(attempt.own, next(iter(own.values())).vector.size)
        parts = [
            own[replica].vector[bounds] if replica in own else pieces[replica][0].vector
            for replica in range(self._replicas)
        ]
        all_scalars = [(own[r] if r in own else pieces[r][0]).scalars for r in range(self._replicas)]
        attempt.chunk = _add(parts)
        attempt.scalars = [sum(values) for values in zip(*all_scalars, strict=True)]
        if attempt.leader == attempt.own:
            facts_of_others = {peer[0]: other for _, other, peer in pieces.values()}
            attempt.flags = decide({attempt.own[0]: facts} | facts_of_others)

    def _send_sum(self, attempt: _Attempt) -> None:
        if attempt.chunk is not None:
            for peer in attempt.others:
                self._send(attempt, peer, "sum", {"kind": "sum", "flags": attempt.flags}, attempt.chunk)

    def _complete(self, attempt: _Attempt, shares: Mapping[int, Share]) -> Result | None:
        """Return the result, once the sums of all chunks are here."""
        if attempt.chunk is None:
            return None
        with self._membership.changed:
            sums = dict(self._inbox.sums.get((attempt.seq, attempt.digest), {}))
        if any(peer not in sums for peer in attempt.others):
            return None
        flags = attempt.flags if attempt.leader == attempt.own else sums[attempt.leader][1]
        if not attempt.others:
            return Result(attempt.chunk, attempt.scalars, flags or {})
        vector = np.empty(next(iter(shares.values())).vector.size, self._dtype)
        for peer in attempt.active:
            vector[attempt.bounds(peer, vector.size)] = attempt.chunk if peer == attempt.own else sums[peer][0]
        return Result(vector, attempt.scalars, flags or {})

    def _keep(self, attempt: _Attempt, result: Result) -> None:
        """Keep the result for this host and for slices that need it, and report it to the hosts of this slice."""
        with self._membership.changed:
            self._newest = attempt.seq, result
            waiting = {
                peer
                for (seq, digest), pieces in self._inbox.pieces.items()
                if seq == attempt.seq and digest != attempt.digest
                for _, _, peer in pieces.values()
            }
            self._inbox.drop(attempt.seq)
        for peer in sorted(waiting):
            self._asked.put(peer)
        self._membership.report_done(attempt.seq, result.flags)

    def _answer(self) -> None:
        """Send the newest result to slices that need it, once on each connection."""
        while True:
            self._send_newest(self._asked.get())

    def _send_newest(self, peer: Peer) -> None:
        newest, generation = self._newest, self._connections.generation(peer)
        if newest and generation and (peer, newest[0], generation) not in self._answered:
            seq, result = newest
            self._answered = {key for key in self._answered if key[1] == seq} | {(peer, seq, generation)}
            header = {"kind": "whole", "seq": list(seq), "scalars": result.scalars, "flags": result.flags}
            self._connections.send(peer, header, as_bytes(result.vector))

    def adopt(self, commit: Commit) -> None:
        """Continue after a reduction in which this slice did not take part."""
        with self._membership.changed:
            self._inbox.drop(commit.seq)


def _add(parts: Sequence[Vector]) -> Vector:
    """Return the sum of vectors, added in their order as float32 and rounded once."""
    total = parts[0].astype(np.float32)
    for part in parts[1:]:
        np.add(total, part, out=total, dtype=np.float32, casting="unsafe")
    return total.astype(parts[0].dtype, copy=False)
