"""Comparison of the states of elastic slices."""

from types import SimpleNamespace
from typing import Any

from trainer.elastic.copies import Differences, differences, require
from trainer.errors import CorruptError
from trainer.hosts.bootstrap import Host

ARRAYS = {"a": 0, "b": 0}


def message(own: int, differ: Differences) -> str:
    """Return the message with which a slice of two hosts ends, "" if it continues."""
    events = SimpleNamespace(write=lambda *words, **named: None)
    job = SimpleNamespace(host=Host(num_slices=4, min_slices=2, slice_id=own, hosts_per_slice=2), events=events)
    run: Any = SimpleNamespace(job=job, programs=SimpleNamespace(state=ARRAYS))
    try:
        require(run, differ, 8)
    except CorruptError as error:
        assert error.suspects == (0, 1), "all hosts of the slice"
        return str(error)
    return ""


def test_equal_states_differ_in_nothing() -> None:
    assert differences({0: [1, 2], 1: [1, 2], 3: [1, 2]}) == [] and differences({}) == []


def test_the_slice_that_differs_from_most_ends_alone() -> None:
    differ = differences({0: [1, 2], 1: [1, 5], 3: [1, 2]})
    assert differ == [[1, [1], True]]
    assert message(1, differ) == "slices differ after step 8: b of slice 1 differs from most other slices"
    assert message(0, differ) == message(3, differ) == ""


def test_all_slices_end_if_no_majority_agrees() -> None:
    differ = differences({0: [1, 2], 1: [7, 2]})
    assert message(0, differ) == message(1, differ) != ""
    assert "a of slice 1 differs from the other slices" in message(0, differ)
