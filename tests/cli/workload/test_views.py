"""The text output of `workload status`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.jobs.objects import ADMITTED, jobset, workload
from xpk.cli.workload import views
from xpk.jobs.output.folder import Progress
from xpk.jobs.output.slices import ActiveSlices, InactiveSlice
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import read
from xpk.model.forecast import StartEstimate
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


@pytest.mark.parametrize(
    ("reason", "typed", "command"),
    [
        ("Pending", "", "xpk workload list --cluster dev"),
        ("WaitingForQuota", "WaitingForQuota", "xpk workload list --cluster dev"),
        ("ExceedsMaxQuota", "ExceedsMaxQuota", "xpk workload delete w --cluster dev"),
        ("Misconfigured", "Misconfigured", "xpk cluster describe dev"),
    ],
)
def test_typed_reasons_of_kueue_are_shown_with_the_next_command(reason: str, typed: str, command: str) -> None:
    waits = workload("w", "u", QuotaReserved=("False", reason, "no quota"))
    status = read(jobset(suspend=True), Snapshot(jobsets=[], workloads=[waits]))
    assert status.pending_reason == typed
    message = views.status(status, None, "dev").splitlines()
    assert any(line.startswith(f"  kueue      QuotaReserved {reason} ") for line in message)
    assert message[-1].split() == ["next", *command.split()]


def test_the_estimated_start_of_a_queued_workload_is_shown_with_its_assumption() -> None:
    def after(hours: float) -> str:
        return (datetime.now(UTC) + timedelta(hours=hours, seconds=30)).isoformat()

    start = StartEstimate(
        earliest=after(1), expected=after(2), latest=after(3), rests_on=("starts when a ends",), preempts=("b", "c")
    )
    waits = workload("w", "u", QuotaReserved=("False", "Pending", "no quota"))
    queued = replace(read(jobset(suspend=True), Snapshot(jobsets=[], workloads=[waits])), start=start)
    lines = views.status(queued, None, "dev").splitlines()
    at = lines.index("  start      in 2h00m (1h00m to 3h00m)")
    assert [line.strip() for line in lines[at + 1 : at + 3]] == ["starts when a ends", "preempts b, c"]
    unknown = replace(start, earliest=None, expected=None, latest=None, reason="it uses fair sharing")
    assert "  start      no estimate: it uses fair sharing" in views.status(replace(queued, start=unknown), None, "dev")
