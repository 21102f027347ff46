"""What a restart reads from the store does not grow with the slices, and with a local tier it is nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.restore import measure, measure_lost_slice, store
from e2e.bucket import missing

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(900)]
SMALL = ("model.embed=64", "model.mlp=128")


def test_arrays_are_read_once_whatever_the_number_of_slices(tmp_path: Path) -> None:
    with store() as server:
        found = measure(server, tmp_path, (1, 2), SMALL)
    one, two = found["restores"]
    assert one["bytes"]["arrays"] > found["state_bytes"] / 2  # it is compressed
    # TensorStore may read what lies between two values with them, or not: that is a matter of timing.
    assert two["bytes"]["arrays"] == pytest.approx(one["bytes"]["arrays"], rel=0.2)
    assert (one["hosts_that_read"], two["hosts_that_read"]) == (1, 1)


def test_a_slice_that_lost_its_local_tier_reads_nothing_from_the_store(tmp_path: Path) -> None:
    with store() as server:
        found = measure_lost_slice(server, tmp_path, SMALL)
    assert (found["source"], found["hosts_that_read"], found["bytes"]["arrays"]) == ("local", 1, 0)
