"""Handover of the state, and of the position in the run, from an active slice to one that joins.

Each host of the slice that leads sends the parts of its own chips to the host of equal number, array by array.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from trainer.elastic.connections import Connections, as_bytes
from trainer.hosts.membership import Commit, Membership, Peer, Seq
from trainer.step.programs import State

KIND = "state"  # of frames
_STALL_SECONDS = 1.0  # without a part of the state, after the slice that sends it may have been lost


@dataclasses.dataclass(frozen=True)
class Position:
    """Position in the run at which a slice joins."""

    step: int  # finished steps
    tokens: int
    commit: Commit
    granted: list[Peer]
    is_start: bool  # no step has been trained yet, so nothing follows the step
    traits: str  # digest of what all slices must agree on

    def as_json(self) -> dict[str, Any]:
        """Return the position in its wire format."""
        values = {"step": self.step, "tokens": self.tokens, "granted": self.granted, "traits": self.traits}
        return values | {"seq": list(self.commit.seq), "flags": self.commit.flags, "start": self.is_start}


def read_position(value: dict[str, Any]) -> Position:
    """Return the position in a message."""
    commit = Commit(Seq(*value["seq"]), value["flags"])
    granted = [(int(number), str(incarnation)) for number, incarnation in value["granted"]]
    return Position(value["step"], value["tokens"], commit, granted, value["start"], value["traits"])


class HandoverLost(Exception):
    """The slice that sends the state was lost before all of it had arrived."""


def send(connections: Connections, peers: Sequence[Peer], state: State, position: Position) -> None:
    """Send the state to slices that join; wait until it is on its way."""
    leaves = jax.tree.leaves(state)
    for nth, leaf in enumerate(leaves):
        payload = as_bytes(np.concatenate([part.reshape(-1) for part in local_parts(leaf)]))
        header = {"kind": KIND, "nth": nth, "of": len(leaves), "position": position.as_json()}
        for peer in peers:
            connections.send(peer, header, payload)


class Receiver:
    """The state that this host receives while it joins."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._parts: dict[int, memoryview] = {}
        self._position: dict[str, Any] = {}
        self._leaves, self._received_at = 0, 0.0

    def receive(self, header: dict[str, Any], payload: memoryview) -> None:
        """Take an array of the state; on a background thread."""
        with self._membership.changed:
            self._parts[int(header["nth"])] = payload
            self._leaves, self._position = int(header["of"]), header["position"]
            self._received_at = time.monotonic()
        self._membership.notify()

    def wait(self, abstract: State, is_counted_on: Any) -> tuple[State, Position] | None:
        """Return the state and its position once all of it is here; None if the run has finished meanwhile.

        `is_counted_on` returns whether other slices wait for this one. Raises HandoverLost.
        """
        membership, leaves = self._membership, jax.tree.leaves(abstract)
        with membership.changed:
            first = {peer for peer in membership.view.slices.items() if peer[1].phase == "active"}
            while not self._leaves or len(self._parts) < self._leaves:
                if membership.view.is_done:
                    return None
                lost = [peer for peer in first if not membership.view.has(peer[0], peer[1].incarnation)]
                is_late = time.monotonic() > self._received_at + _STALL_SECONDS
                if lost and is_late and (is_counted_on() or self._parts):
                    raise HandoverLost(f"slice {lost[0][0]}")
                membership.changed.wait(_STALL_SECONDS)
            parts, position = self._parts, read_position(self._position)
        arrays = [assemble(parts[nth], leaf) for nth, leaf in enumerate(leaves)]
        return jax.tree.unflatten(jax.tree.structure(abstract), arrays), position


def local_parts(array: jax.Array) -> list[npt.NDArray[Any]]:
    """Return the parts of an array on this host's chips, in the order of the chips."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.device.id)
    return [np.ascontiguousarray(shard.data) for shard in shards]


def assemble(payload: memoryview, form: Any) -> jax.Array:
    """Return an array of this shape, type and sharding from the parts of this host's chips."""
    shape = form.sharding.shard_shape(form.shape)
    devices = sorted(form.sharding.addressable_devices, key=lambda device: device.id)
    parts = np.frombuffer(payload, form.dtype).reshape(len(devices), *shape)
    placed = [jax.device_put(part, device) for part, device in zip(parts, devices, strict=True)]
    return jax.make_array_from_single_device_arrays(form.shape, form.sharding, placed)
