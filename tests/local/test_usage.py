"""The usage ledger of a local cluster, with real hosts and a daemon that is killed."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tests.local.cases import ended, jobset, running
from tests.local.killing import kill_daemon
from tests.waiting import until
from xpk.api.base import Obj
from xpk.jobs.usage.ledger import Ledger, read
from xpk.local.api import LocalApi
from xpk.local.store import Store
from xpk.local.usage_book import Book
from xpk.model.errors import XpkError
from xpk.model.usage import MICROSECONDS, Hold, Holding, State, Supply
from xpk.storage import open_folder

SAVES = "trap 'sleep 0.3; exit 143' TERM; echo up; while :; do sleep 0.02; done"
DAY = 86400 * MICROSECONDS


def ledger_of(api: LocalApi) -> Ledger:
    now = time.time_ns() // 1000
    return read(open_folder(api.usage_folder), since=now - DAY, until=now, more=api.open_usage())


def holds_of(api: LocalApi, name: str) -> list[Hold]:
    return [hold for hold in ledger_of(api).holds if hold.workload == name]


def states(api: LocalApi, name: str) -> list[str]:
    """Return the states of a workload in order, without those of a moment."""
    holds = [hold for hold in holds_of(api, name) if hold.end - hold.begin > 2000]
    return [str(state) for state, _ in itertools.groupby(hold.state for hold in holds)]


def until_up(api: LocalApi, pods: list[Obj]) -> None:
    """Wait until hosts handle SIGTERM."""
    until(lambda: all(list(api.logs(pod)) for pod in pods))


def test_a_preempted_workload_stops_waits_and_starts_again(api: LocalApi) -> None:
    low = jobset("low", SAVES, priority="low")
    low["metadata"]["annotations"] |= {"xpk.dev/user": "ann", "xpk.dev/output-dir": "/out/low"}
    api.create(low)
    until_up(api, running(api, "low"))
    api.create(jobset("high", "sleep 0.5", priority="high"))
    assert ended(api, "high") == "Completed"
    running(api, "low")
    until(lambda: states(api, "low")[-1] == "running")
    assert states(api, "low")[-6:] == ["start", "running", "stop", "queued", "start", "running"]
    holds = holds_of(api, "low")
    assert {hold.chips for hold in holds} == {16} and {hold.user for hold in holds} == {"ann"}
    assert {hold.output_dir for hold in holds} == {"/out/low"} and {hold.team for hold in holds} == {"default"}
    assert {hold.reason for hold in holds if hold.state is State.STOP} == {"preempted"}
    assert all(one.end == other.begin for one, other in itertools.pairwise(holds))
    (capacity,) = {(record.total, sum(record.slices.values())) for record in ledger_of(api).capacities[-1:]}
    assert capacity == (16, 2)


def test_a_restart_is_down_time_and_a_deletion_holds_until_the_last_host_ends(api: LocalApi, tmp_path: Path) -> None:
    crashes = tmp_path / "crashes"
    script = f'test "$XPK_RESTART_ATTEMPT" -gt 0 || {{ until [ -e {crashes} ]; do sleep 0.05; done; exit 1; }}; {SAVES}'
    api.create(jobset("w", script, max_restarts=3))
    until(lambda: states(api, "w")[-1:] == ["running"])
    crashes.touch()
    until_up(api, running(api, "w", attempt=1))
    until(lambda: states(api, "w")[-1] == "running")
    assert states(api, "w")[-3:] == ["running", "down", "running"]
    api.delete("JobSet", "w")
    until(lambda: not api.list("Pod"))
    until(lambda: all(hold.end < time.time_ns() // 1000 - MICROSECONDS for hold in holds_of(api, "w")))
    stop = [hold for hold in holds_of(api, "w") if hold.state is State.STOP]
    assert {hold.reason for hold in stop} == {"deleted"} and stop[-1].end - stop[0].begin > 0.25 * MICROSECONDS


def test_a_killed_daemon_loses_and_duplicates_nothing(api: LocalApi, folder: Path, tmp_path: Path) -> None:
    may_end = tmp_path / "may-end"
    api.create(jobset("w", f"until [ -e {may_end} ]; do sleep 0.02; done"))
    until(lambda: states(api, "w")[-1:] == ["running"])
    began = time.monotonic()
    kill_daemon(folder)
    time.sleep(0.5)
    assert api.list("JobSet")  # starts the daemon again
    least = (time.monotonic() - began) * MICROSECONDS
    may_end.touch()
    assert ended(api, "w") == "Completed"
    before = until(lambda: [hold for hold in holds_of(api, "w") if hold.state is State.RUNNING])
    assert sum(hold.end - hold.begin for hold in before) > least
    kill_daemon(folder)
    assert [hold for hold in holds_of(api, "w") if hold.state is State.RUNNING] == before


def test_a_damaged_book_stops_the_ledger_but_not_the_cluster(api: LocalApi, folder: Path) -> None:
    until(lambda: ledger_of(api).capacities)
    with Store(folder) as store, store.transaction() as tx:
        tx.put((tx.get("UsageSupply", "", "supply") or {}) | {"supply": "none"})
    api.create(jobset("w", "true"))
    assert ended(api, "w") == "Completed"
    with pytest.raises(XpkError, match="the store of cluster 'demo' is damaged"):
        api.open_usage()


def test_records_wait_in_the_store_until_they_can_be_written(api: LocalApi, folder: Path) -> None:
    api.create(jobset("first", "true"))
    until(lambda: any((folder / "usage").rglob("*.json")))
    away = (folder / "usage").rename(folder / "away")
    (folder / "usage").write_text("not a folder")
    api.create(jobset("w", "true"))
    assert ended(api, "w") == "Completed"
    (folder / "usage").unlink()
    away.rename(folder / "usage")
    until(lambda: [hold for hold in read_files(folder) if hold.workload == "w" and hold.state is not State.QUEUED])
    assert ledger_of(api).problems == []


def read_files(folder: Path) -> list[Hold]:
    now = time.time_ns() // 1000
    return read(open_folder(str(folder / "usage")), since=now - DAY, until=now).holds


def holding(state: State) -> Holding:
    return Holding(
        uid="u", workload="w", namespace="default", queue="q", team="t", user="ann", accelerator_type="v5p-8",
        chips=4, state=state, created=0,
    )  # fmt: skip


def test_a_clock_that_is_set_back_makes_no_overlaps() -> None:
    book, supply = Book(), Supply(chips={"v5p-8": 4})
    assert book.advance(10 * DAY, {"u": holding(State.START)}, supply) == []
    assert book.advance(10 * DAY - 5, {"u": holding(State.RUNNING)}, supply) == []  # it held for no time
    (record,) = book.advance(10 * DAY + 7, {}, supply)
    assert isinstance(record, Hold) and (record.begin, record.end) == (10 * DAY, 10 * DAY + 7)
    # A clock that was days ahead is not waited for.
    assert book.advance(5 * DAY, {"u": holding(State.RUNNING)}, supply) == []
    assert [item.end for item in book.open_records(6 * DAY) if isinstance(item, Hold)] == [6 * DAY]
