"""Tables and details that fit the terminal; sorting; colors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import pytest

from tests.cli.conftest import Xpk
from tests.jobs.objects import ADMITTED, jobset
from xpk.capacity.queues.reading import QueueInfo, TypeShare
from xpk.cli.info import CLUSTER, LOCAL, ClusterQueue, LocalQueue
from xpk.cli.queue import COLUMNS as QUEUE_COLUMNS
from xpk.cli.terminal.output import colors
from xpk.cli.terminal.tables import Column, sort_rows, table, wrapped
from xpk.cli.workload import views
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import read
from xpk.model.status import Phase, Quota, Share, WorkloadStatus

FOUND = read(jobset(), Snapshot(jobsets=[], workloads=[ADMITTED], events=[]))
LONG = replace(
    FOUND, name="long-training-run-a-1", priority="very-high", user="someone", accelerator_type="v5litepod-8"
)
DEMAND = Quota(
    flavor="v5litepod-8",
    resource="google.com/tpu",
    quota=8,
    used=16,
    needed=16,
    free=0,
    most=16,
    holders=(Share(workload="long-training-run-a-1", amount=16),),
)


def titles(width: int | None, workload: WorkloadStatus = LONG) -> list[str]:
    """Return the titles of the list's table after checking that it fits."""
    lines = table([workload], views.COLUMNS, width=width).splitlines()
    assert len(lines) == 2 and all(len(line) <= (width or 1000) for line in lines)
    return lines[0].split()


def test_columns_are_omitted_on_a_narrow_terminal() -> None:
    everything = ["NAME", "PHASE", "PRIORITY", "TYPE", "SLICES", "HOSTS", "RESTARTS", "USER", "AGE"]
    assert titles(None) == titles(120) == everything
    assert titles(88) == [title for title in everything if title != "USER"]
    assert titles(80) == [title for title in everything if title not in ("USER", "PRIORITY")]


def test_required_columns_are_never_omitted() -> None:
    assert table([LONG], views.COLUMNS, width=20).split()[:4] == ["NAME", "PHASE", "SLICES", "HOSTS"]


def test_long_cells_are_wrapped_at_words_or_truncated() -> None:
    columns = [Column("A", lambda r: r[0], cut=6), Column("B", lambda r: r[1], wrap=True)]
    row = ("team-a,team-b,team-c", "the quick brown fox jumps over the-lazy-dog")
    shown = table([row], columns, width=36)
    assert shown.splitlines() == [
        "A                  B",
        "team-a,team-b,te…  the quick brown",
        "                   fox jumps over",
        "                   the-lazy-dog",
    ]
    assert (
        table([row], columns, width=60, whole=True).splitlines()[1]
        == "team-a,team-b,team-c  the quick brown fox jumps over"
    )
    assert len(table([row], columns, width=30, whole=True).splitlines()) == 2


def test_details_have_a_hanging_indent_and_words_are_not_split() -> None:
    text = f"  quota      needs 16 of {'x' * 30} and more words"
    assert wrapped(text, 40, 13).splitlines() == [
        "  quota      needs 16 of",
        f"             {'x' * 30}",
        "             and more words",
    ]


def test_a_pending_workload_names_the_slices_and_their_users() -> None:
    waiting = replace(
        FOUND,
        phase=Phase.QUEUED,
        reason="couldn't assign flavors",
        quota=(DEMAND,),
        num_slices=2,
        position=1,
        queue="q",
    )
    lines = click.unstyle(views.status(waiting, None, "dev", 80)).splitlines()
    assert lines[0] == f"{FOUND.name}: Queued — waiting for 2 slices of v5litepod-8: 0 free, held by"
    assert lines[1] == "  long-training-run-a-1" and max(map(len, lines)) <= 80
    shown = views.status(waiting, None, "dev")
    assert "v5litepod-8: 16 google.com/tpu in use (own quota 8, borrowed 8); 16 needed, 0 free" in shown
    assert "  kueue      couldn't assign flavors" in shown and "  position   1 in queue q" in shown
    never = views.status(replace(waiting, quota=(replace(DEMAND, most=8),)), None, "dev")
    assert "needs 2 slices of v5litepod-8, but its queue can have at most 1" in never


def test_rows_are_sorted_by_value() -> None:
    rows = [replace(LONG, name=name, priority=name) for name in ("medium", "very-low", "high", "low")]
    assert [row.name for row in sort_rows(rows, next(item for item in views.COLUMNS if item.title == "PRIORITY"))] == [
        "very-low",
        "low",
        "medium",
        "high",
    ]


def test_amounts_are_sorted_as_numbers() -> None:
    (quota,) = (column for column in QUEUE_COLUMNS if column.title == "QUOTA")
    share = TypeShare(type="a", quota=2, used=0, free=0, most=0, borrowing_limit=None, lending_limit=None)
    common: dict[str, Any] = {"cluster_queue": "", "namespaces": (), "pending": 0, "admitted": 0, "cohort": ""}
    common |= {"reclaim": "", "maker": "", "created": ""}
    rows = [QueueInfo(name=f"{n}", shares=(replace(share, quota=n),), **common) for n in (10, 2)]
    assert [row.name for row in sort_rows(rows, quota)] == ["2", "10"]


@pytest.mark.parametrize(
    ("choice", "environ", "expected"),
    [
        ("auto", {}, None),
        ("auto", {"NO_COLOR": "1"}, False),
        ("auto", {"TERM": "dumb"}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {}, False),
    ],
)
def test_colors(choice: str, environ: dict[str, str], expected: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert colors(choice) is expected


def test_colors_are_used_on_request(dev: Xpk) -> None:
    for choice in ("always", "never"):
        message = dev("--color", choice, "workload", "create", choice, "--command", "true")
        assert ("\x1b[32m✓" in message.err) is (choice == "always")


def test_info_fits_the_terminal() -> None:
    name, other = "a-queue-with-quite-a-long-name", "another-queue-with-quite-a-long-name"
    local = LocalQueue(name=name, namespace="a-namespace-of-a-team", cluster_queue=other, admitted=0, pending=0)
    amounts = ",".join(f"v5litepod-{size}=4" for size in (8, 16, 32, 64, 128))
    for row, columns in (
        (local, LOCAL),
        (ClusterQueue(name=name, admitted=0, pending=0, used=amounts, quota=amounts), CLUSTER),
    ):
        assert max(map(len, table([row], columns, width=80).splitlines())) <= 80
