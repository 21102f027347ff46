"""The text output of `workload status`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.jobs.objects import ADMITTED, jobset
from xpk.cli.workload import views
from xpk.jobs.output.folder import Progress
from xpk.jobs.output.slices import ActiveSlices, InactiveSlice
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import read
from xpk.model.status import Phase


@pytest.mark.parametrize("replaced", [0, 2])
def test_replacements_of_trainers_are_listed_below_restarts(replaced: int) -> None:
    annotations = {"xpk.dev/launcher": "ray"}
    result = read(jobset(annotations=annotations, restarts=1), Snapshot(jobsets=[], workloads=[ADMITTED], events=[]))
    assert result.launcher == "ray"
    message = views.status(result, Progress(5, 1.5, replacements=replaced), "dev").splitlines()
    (at,) = (index for index, line in enumerate(message) if line.startswith("  restarts   0 of "))
    more = "             and 2 replacements of trainers on the same hosts, which count as well"
    assert (message[at + 1] == more) is bool(replaced)


def slices(count: int, *inactive: InactiveSlice) -> ActiveSlices:
    """Return the newest record of four slices of which two are required."""
    since = "2026-01-31T14:02:11Z"
    return ActiveSlices(
        active=tuple(range(count)), count=count, num_slices=4, min_slices=2, since=since, inactive=inactive
    )


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (slices(4), "4 of 4 active since 14:02:11Z"),
        (
            slices(3, InactiveSlice(slice=1, since=None, step=57)),
            "3 of 4 active since 14:02:11Z (slice 1 lost after step 57)",
        ),
        (slices(3, InactiveSlice(slice=1, since=None, step=None)), "3 of 4 active since 14:02:11Z"),
        (slices(1), "waiting for slices: 1 of 4 active, requires 2"),
    ],
)
def test_active_slices_are_listed(known: ActiveSlices, expected: str) -> None:
    running = replace(read(jobset(), Snapshot(jobsets=[], workloads=[ADMITTED])), phase=Phase.RUNNING)
    message = views.status(running, Progress(60, 1.5, slices=known), "dev").splitlines()
    assert f"  slices     {expected}" in message
    last = "describe w --cluster dev" if known.count < 2 else "logs w --cluster dev -f"
    assert message[-1].endswith(last)


def test_slices_of_a_workload_that_has_ended_are_omitted() -> None:
    ended = replace(read(jobset(), Snapshot(jobsets=[], workloads=[ADMITTED])), phase=Phase.SUCCEEDED)
    assert "  slices " not in views.status(ended, Progress(60, 1.5, slices=slices(3)), "dev")
