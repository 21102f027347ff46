"""The order of records is a function of (seed, step) for any readers, and hosts read disjoint records."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data import batches as data
from trainer.data.sampler import Order

files = st.lists(st.integers(0, 15), min_size=1, max_size=6).map(tuple).filter(lambda counts: sum(counts) >= 6)
orders = st.builds(
    lambda seed, item, shards, shuffle, window, counts: Order(
        seed, item * shards, sum(counts), shards, shuffle, window, counts
    ),
    *(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 6)),
    *(st.sampled_from(("records", "files", "none")), st.integers(0, 12), files),
)


def epochs(order: Order, count: int) -> npt.NDArray[np.int64]:
    """Return the records of each shard [K, N], epoch by epoch, in the order of steps."""
    item, size = order.batch // order.shards, order.records // order.shards
    steps = [order.ids(step).reshape(order.shards, item) for step in range(-(-count * size // item))]
    return np.concatenate(steps, axis=1)[:, : count * size]


@settings(max_examples=30)
@given(orders)
def test_each_shard_has_each_record_once_per_epoch(order: Order) -> None:
    size = order.records // order.shards
    for shard, ids in enumerate(epochs(order, 3).reshape(order.shards, 3, size)):
        for epoch in ids:
            assert sorted(epoch) == list(range(shard * size, (shard + 1) * size))


def test_files_are_shuffled_differently_in_each_epoch() -> None:
    counts = (30, 5, 40, 25)
    file_of = np.repeat(np.arange(4), counts)
    ids = epochs(Order(3, 10, 100, 1, "files", 0, counts), 4).reshape(4, 100)
    turns = [[int(file) for nth, file in enumerate(row) if nth == 0 or file != row[nth - 1]] for row in file_of[ids]]
    assert all(sorted(turn) == [0, 1, 2, 3] for turn in turns)  # no file is left and returned to
    assert len({tuple(turn) for turn in turns}) > 1
    assert len({tuple(ids[epoch][file_of[ids[epoch]] == 2]) for epoch in range(4)}) == 4


def test_a_window_keeps_records_near_their_position() -> None:
    counts = (30, 50)
    ids = epochs(Order(3, 10, 80, 1, "files", 8, counts), 1)[0]
    second = ids[ids >= 30] - 30
    assert (np.abs(second - np.arange(50)) < 8).all()
    assert (second != np.arange(50)).any()


def test_without_shuffling_records_keep_their_order() -> None:
    assert epochs(Order(3, 4, 10, 1, "none"), 2)[0].tolist() == [*range(10), *range(10)]


class Hosts:
    """The hosts of a job with two chips each, some of which load; rows are distributed as by `to_blocks`."""

    def __init__(self, hosts: int, loaders: int, batch: int, shards: int, *, twisted: bool = False) -> None:
        places = np.arange(2 * hosts)
        owners = np.concatenate([places[::2], places[1::2]]) // 2 if twisted else places // 2
        mesh: Any = SimpleNamespace(devices=np.array([SimpleNamespace(process_index=int(own)) for own in owners]))
        self.slots = data.make_slots(mesh, loaders, hosts, batch, shards=shards)
        self.owners = owners

    def read(self, ids: npt.NDArray[np.int64]) -> dict[int, list[int]]:
        """Return the records that each host reads of a batch, in the order of rows."""
        read: dict[int, list[int]] = {}
        for place in self.slots.readers:
            mine = data.ids_of_chip(self.slots, place, ids)
            read.setdefault(int(self.owners[place]), []).extend(int(number) for number in mine if number >= 0)
        return read


LOADERS = [(1, 1), (2, 2), (4, 4), (4, 2), (4, 1), (8, 4)]  # hosts, and how many of them load


@pytest.mark.parametrize("shuffle", ["records", "files"])
@pytest.mark.parametrize("shards", [1, 4])
def test_the_records_of_all_hosts_are_an_epoch_for_any_number_of_hosts(shards: int, shuffle: str) -> None:
    order, steps = Order(5, 16, 96, shards, shuffle, 0, (40, 60, 28)), 6
    batches = set()
    for hosts, loaders in LOADERS:
        made = Hosts(hosts, loaders, 16, shards)
        item = [made.read(order.ids(step)) for step in range(steps)]
        assert {len(read) for read in item} == {loaders}
        seen = [number for read in item for mine in read.values() for number in mine]
        assert sorted(seen) == list(range(96))  # each once: no duplicates, no gaps
        batches.add(tuple(tuple(sorted(n for mine in read.values() for n in mine)) for read in item))
    assert len(batches) == 1


@pytest.mark.parametrize("twisted", [False, True])
@pytest.mark.parametrize(("hosts", "loaders"), LOADERS)
def test_hosts_read_only_their_own_shards(hosts: int, loaders: int, twisted: bool) -> None:
    order, made = Order(5, 16, 100, 4, "files", 0, (40, 60, 28)), Hosts(hosts, loaders, 16, 4, twisted=twisted)
    shards: dict[int, set[int]] = {}
    for step in range(30):  # over several epochs
        for host, mine in made.read(order.ids(step)).items():
            shards.setdefault(host, set()).update(number // 25 for number in mine)
    assert len(shards) == loaders
    for host, some in shards.items():
        places = [place for place in made.slots.readers if made.owners[place] == host]
        assert data.shards_of(made.slots, places, order) == some
    assert sorted(shard for some in shards.values() for shard in some) == [0, 1, 2, 3]


def test_a_restart_on_other_hosts_neither_repeats_nor_omits_records() -> None:
    order = Order(5, 16, 96, 4)
    before, after = Hosts(4, 4, 16, 4), Hosts(2, 1, 16, 4)
    through = data.train_ids(order, 0)
    first = [before.read(next(through)) for _ in range(2)]
    again = data.train_ids(order, 2)
    rest = [after.read(next(again)) for _ in range(4)]
    assert sorted(number for read in first + rest for mine in read.values() for number in mine) == list(range(96))
