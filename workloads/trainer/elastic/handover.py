"""Handover of the state, and of the position in the run, from an active slice to one that joins.

Each host of the slice that leads sends the parts of its own chips to the host of equal number, part by part.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from trainer.elastic.connections import Connections, as_bytes
from trainer.hosts.membership import DONE, FOUNDER, Commit, Membership, Peer, Seq
from trainer.hosts.run_record import Tally
from trainer.step.programs import State
from xpk_shared.slices.roster import ACTIVE, Entry

KIND = "state"  # of frames
_CONNECT_SECONDS = 2.0  # for a slice that joins to complete its connections, before the state is sent
_POLL_SECONDS = 0.5
_LOST_SECONDS = 1.0  # without a part of the state, after the slice that sends it may have been lost
_STALL_SECONDS = 10.0  # without a part of the state, although other slices wait for this one


@dataclasses.dataclass(frozen=True)
class Position:
    """Position in the run at which a slice joins."""

    step: int  # finished steps
    tokens: int
    commit: Commit
    granted: list[Peer]
    is_start: bool  # no step has been trained yet, so nothing follows the step
    traits: str  # digest of what all slices must agree on
    tally: Tally  # of the run's record

    def as_json(self) -> dict[str, Any]:
        """Return the position in its wire format."""
        values = {"step": self.step, "tokens": self.tokens, "granted": self.granted, "traits": self.traits}
        values |= {"seq": list(self.commit.seq), "flags": self.commit.flags, "start": self.is_start}
        return values | {"tally": dataclasses.asdict(self.tally)}


def read_position(value: dict[str, Any]) -> Position:
    """Return the position in a message."""
    commit = Commit(Seq(*value["seq"]), value["flags"])
    granted = [(int(number), str(incarnation)) for number, incarnation in value["granted"]]
    tally = Tally(**value.get("tally", {}))  # another version of the trainer sends none, and its traits are refused
    return Position(value["step"], value["tokens"], commit, granted, value["start"], value["traits"], tally)


class HandoverLost(Exception):
    """The slice that sends the state was lost before all of it had arrived."""


def send(
    membership: Membership, connections: Connections, peers: Sequence[Peer], state: State, position: Position
) -> None:
    """Send the state to slices that join; wait until it is on its way."""
    with membership.changed:
        membership.changed.wait_for(lambda: all(map(connections.generation, peers)), _CONNECT_SECONDS)
    parts = [part for leaf in jax.tree.leaves(state) for part in local_parts(leaf)]
    for nth, part in enumerate(parts):
        header = {"kind": KIND, "nth": nth, "of": len(parts), "position": position.as_json()}
        for peer in peers:
            connections.send(peer, header, as_bytes(part))


class Receiver:
    """The state that this host receives while it joins."""

    def __init__(self, membership: Membership, clock: Callable[[], float] = time.monotonic) -> None:
        self._membership, self._clock = membership, clock
        self._parts: dict[int, memoryview] = {}
        self._position: dict[str, Any] = {}
        self._expected, self._progressed_at = 0, 0.0

    def receive(self, header: dict[str, Any], payload: memoryview) -> None:
        """Take a part of the state; on a background thread."""
        with self._membership.changed:
            self._parts[int(header["nth"])] = payload
            self._expected, self._position = int(header["of"]), header["position"]
            self._progressed_at = self._clock()
        self._membership.notify()

    def wait(self, abstract: State, is_awaited: Callable[[], bool]) -> tuple[State, Position] | None:
        """Return the state and its position once all of it is here.

        Return None if no slice will send it: the run has finished, or this slice is the founder, since all active
        slices were lost. `is_awaited` returns whether other slices wait for this one. Raises HandoverLost.
        """
        membership = self._membership
        with membership.changed:
            senders = [(number, entry) for number, entry in membership.view.slices.items() if entry.phase == ACTIVE]
            while not self._expected or len(self._parts) < self._expected:
                if membership.role in (DONE, FOUNDER) and not self._parts:
                    return None
                self._check_progress(senders, is_awaited=is_awaited())
                membership.changed.wait(_POLL_SECONDS)
            parts, position = self._parts, read_position(self._position)
        return _assemble(parts, abstract), position

    def _check_progress(self, senders: Sequence[tuple[int, Entry]], *, is_awaited: bool) -> None:
        """Raise HandoverLost if the rest of the state will not come."""
        now = self._clock()
        if not (is_awaited or self._parts):
            self._progressed_at = now
            return
        lost = [number for number, entry in senders if self._membership.is_lost((number, entry.incarnation))]
        if now > self._progressed_at + (_LOST_SECONDS if lost else _STALL_SECONDS):
            raise HandoverLost(f"slice {lost[0]}" if lost else "the connection to the slice that leads")


def local_parts(array: jax.Array) -> list[npt.NDArray[Any]]:
    """Return the parts of an array on this host's chips, in the order of the chips."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.device.id)
    return [np.ascontiguousarray(shard.data) for shard in shards]


def _assemble(parts: dict[int, memoryview], abstract: State) -> State:
    """Return the state from the parts of this host's chips, which are in the order of `send`."""
    payloads, arrays = iter([parts[nth] for nth in range(len(parts))]), []
    for form in jax.tree.leaves(abstract):
        shape = form.sharding.shard_shape(form.shape)
        devices = sorted(form.sharding.addressable_devices, key=lambda device: device.id)
        placed = [
            jax.device_put(np.frombuffer(next(payloads), form.dtype).reshape(shape), device) for device in devices
        ]
        arrays.append(jax.make_array_from_single_device_arrays(form.shape, form.sharding, placed))
    state: State = jax.tree.unflatten(jax.tree.structure(abstract), arrays)
    return state
