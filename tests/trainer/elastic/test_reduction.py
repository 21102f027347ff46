"""Sums over shares, with slices that are lost after any number of frames: the bits are always the same."""

import functools
import queue
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.elastic.reduction import Facts, Reductions, Result, Share
from trainer.hosts.bootstrap import Host
from trainer.hosts.membership import TRAIN, Membership, Peer, Seq, shares_of
from trainer.hosts.peers import Peers
from xpk_shared.slices.roster import ACTIVE, WAITING, Entry, View

SECONDS = 20.0
SIZE = 23  # numbers of a vector, not divisible by any number of slices


class Network:
    """Slices of one host in one process. A slice is lost after it has sent a number of frames."""

    def __init__(self, slices: int, frames: Mapping[int, int], min_slices: int = 1) -> None:
        self.lock = threading.RLock()
        self.frames = dict(frames)
        self.slices = [Slice(self, number, slices, min_slices) for number in range(slices)]
        self.publish()

    def publish(self) -> None:
        """Tell all slices which ones are present."""
        with self.lock:
            present = {part.number: Entry(part.peer[1], ACTIVE, ()) for part in self.slices if not part.is_lost}
        for part in self.slices:
            part.views.put(View(1, present))

    def send(self, sender: "Slice", peer: Peer, header: dict[str, Any], payload: memoryview) -> None:
        """Deliver a frame, unless one of the two slices is lost."""
        with self.lock:
            left = self.frames.get(sender.number)
            if left == 0 and not sender.is_lost:
                sender.is_lost = True
                threading.Thread(target=self.publish, daemon=True).start()
            if left:
                self.frames[sender.number] = left - 1
            receiver = self.slices[peer[0]]
            if not sender.is_lost and not receiver.is_lost:
                receiver.frames.put((sender.peer, dict(header), memoryview(bytes(payload))))


class Slice:
    """One slice: its membership, its reductions, and the threads that receive frames and views."""

    def __init__(self, network: Network, number: int, slices: int, min_slices: int) -> None:
        self.number, self.peer, self.is_lost = number, (number, f"i{number}"), False
        self._network = network
        self.frames: queue.SimpleQueue[tuple[Peer, dict[str, Any], memoryview]] = queue.SimpleQueue()
        self.views: queue.SimpleQueue[View] = queue.SimpleQueue()
        peers = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
        self.membership = Membership(
            Host(num_slices=slices, slice_id=number, min_slices=min_slices), peers, on_dropped=lambda reason: None
        )
        self.membership.own = self.peer
        self.membership.adopt([(other, f"i{other}") for other in range(slices)], self.membership.commit)
        self.reduce = Reductions(self.membership, self, slices, np.float32)  # type: ignore[arg-type]
        threading.Thread(target=self._receive_frames, daemon=True).start()
        threading.Thread(target=self._receive_views, daemon=True).start()

    def generation(self, peer: Peer) -> int:
        """Return that the connection is open."""
        return 1

    def send(self, peer: Peer, header: dict[str, Any], payload: memoryview) -> None:
        """Send a frame over the network."""
        self._network.send(self, peer, header, payload)

    def _receive_frames(self) -> None:
        while True:
            self.reduce.receive(*self.frames.get())

    def _receive_views(self) -> None:
        leader = self.membership._leader
        assert leader is not None
        while True:
            leader._take_view(self.views.get())


def vector(replica: int, step: int) -> npt.NDArray[np.float32]:
    """Return a share whose sum depends on the order of the additions."""
    return np.random.default_rng([replica, step]).normal(0, 10.0**replica, SIZE).astype(np.float32)


def expected(replicas: int, step: int) -> npt.NDArray[np.float32]:
    """Return the sum of all shares in the order of replicas."""
    return functools.reduce(np.add, [vector(replica, step) for replica in range(replicas)])


def run(network: Network, steps: int) -> dict[int, list[Result]]:
    """Run reductions on all slices; return the results of those that are left."""
    results: dict[int, list[Result]] = {}

    def train(part: Slice) -> None:
        own: list[Result] = []
        for step in range(steps):
            compute = functools.partial(_share, step)
            own.append(part.reduce(Seq(step, TRAIN), compute, lambda: {"slice": part.number}, _decide))
            if part.is_lost:
                return
        results[part.number] = own

    threads = [threading.Thread(target=train, args=(part,), daemon=True) for part in network.slices]
    for thread in threads:
        thread.start()
    for part, thread in zip(network.slices, threads, strict=True):
        if part.number not in network.frames:
            thread.join(SECONDS)
            assert not thread.is_alive(), f"slice {part.number} waits in {part.membership.commit}"
    return results


def _share(step: int, replica: int) -> Share:
    return Share(vector(replica, step), [float(replica)])


def _decide(facts: Mapping[int, Facts]) -> dict[str, Any]:
    return {"facts": sorted(known["slice"] for known in facts.values())}


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 4), st.dictionaries(st.integers(1, 3), st.integers(0, 25), max_size=2))
def test_sums_have_the_same_bits_whenever_slices_are_lost(slices: int, frames: dict[int, int]) -> None:
    lost = {number: left for number, left in frames.items() if number < slices}
    results = run(Network(slices, lost), steps=4)
    survivors = set(range(slices)) - set(lost)
    assert survivors <= set(results)
    for step in range(4):
        sums = [results[number][step] for number in sorted(survivors)]
        for result in sums:
            np.testing.assert_array_equal(result.vector.view(np.uint32), expected(slices, step).view(np.uint32))
            assert result.scalars == [sum(range(slices))]
            assert result.flags == sums[0].flags, "all slices follow the same decisions"


def test_a_step_waits_while_those_that_are_not_present_may_train() -> None:
    """Slices behind a split of the network continue without the registry, which believes them lost."""
    network = Network(3, {1: 0, 2: 0}, min_slices=2)
    alone, done = network.slices[0], threading.Event()

    def train() -> None:
        alone.reduce(Seq(0, TRAIN), functools.partial(_share, 0), lambda: {"slice": 0}, _decide)
        done.set()

    for part in network.slices[1:]:
        network.send(part, alone.peer, {}, memoryview(b""))
    threading.Thread(target=train, daemon=True).start()
    assert not done.wait(0.5)
    back = {0: Entry(alone.peer[1], ACTIVE, ()), 1: Entry("back", WAITING, ())}
    alone.views.put(View(2, back))
    assert done.wait(SECONDS)


def test_the_leading_slice_decides_with_the_facts_of_all() -> None:
    results = run(Network(3, {}), steps=1)
    assert [results[number][0].flags for number in range(3)] == [{"facts": [0, 1, 2]}] * 3


def test_the_sum_of_narrow_vectors_is_rounded_once() -> None:
    import ml_dtypes

    from trainer.elastic.reduction import _add

    parts = [np.full(3, value, ml_dtypes.bfloat16) for value in (256.0, 1.0, 1.0)]
    assert _add(parts).astype(np.float32).tolist() == [258.0] * 3


@pytest.mark.parametrize(
    ("active", "shares"),
    [([0, 1, 2, 3], {0: [0], 1: [1], 2: [2], 3: [3]}), ([1, 3], {1: [1, 0], 3: [3, 2]}), ([2], {2: [2, 0, 1, 3]})],
)
def test_shares_of_lost_slices_are_spread_over_the_others(active: list[int], shares: dict[int, list[int]]) -> None:
    assert {number: shares_of(number, active, 4) for number in active} == shares
