"""Restarts in place, from the record in the output folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.objects import ADMITTED, ROOTS, exited, jobset, restarted
from xpk.jobs.status.fields import Snapshot, when
from xpk.jobs.status.in_place import crash_loop, read_record, with_local_restarts, with_restarts_in_place
from xpk.jobs.status.reader import read
from xpk.model import names
from xpk.model.status import Phase, WorkloadStatus
from xpk_shared.supervisor.names import RECORD

CREATED = when("2026-01-31T12:00:00Z")


def line(second: float, attempt: int = 1, **changes: Any) -> bytes:
    """Return a line of the record, this many seconds after the workload's creation."""
    record = {"time": CREATED.timestamp() + second, "job": "u", "attempt": attempt, "restarts_in_place": 1}
    return json.dumps({**record, "slice": 1, "host": 0, "exit_code": 137, **changes}).encode() + b"\n"


def status(folder: Path, *events: Any, count: int = 0) -> WorkloadStatus:
    """Return the status of a workload whose JobSet has restarted this many times."""
    annotations = {names.OUTPUT_ANNOTATION: str(folder)}
    return read(
        jobset(annotations=annotations, restarts=count),
        Snapshot(jobsets=[], workloads=[ADMITTED], events=list(events)),
    )


def test_restarts_in_place_are_merged_with_those_of_the_jobset(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(line(5) + line(30, 2, exit_code=76))
    known = with_restarts_in_place(status(tmp_path, exited(1, 3, 12), restarted(1, 12.288), count=1), ROOTS)
    assert (known.restarts, known.restarts_in_place) == (3, 2)
    assert [(item.attempt, item.exit_code) for item in known.restart_history] == [(0, 137), (1, 3), (2, 76)]
    assert known.restart_history[0].cause == "host s1/h0 ended with exit code 137 (SIGKILL); restarted in place"
    assert known.restart_history[0].time == "2026-01-31T12:00:05Z"


def test_a_frozen_host_is_named_without_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(line(5, silent=True))
    (restart,) = with_restarts_in_place(status(tmp_path), ROOTS).restart_history
    assert restart.cause == "host s1/h0 did not answer; restarted in place"
    assert (restart.slice, restart.host, restart.exit_code) == (1, 0, None)


def test_restarts_of_an_earlier_workload_with_the_same_name_do_not_count(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(line(-100) + line(5))
    assert with_restarts_in_place(status(tmp_path), ROOTS).restarts == 1


def test_a_list_reads_folders_but_no_bucket(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(line(5))
    bucket = jobset(annotations={names.OUTPUT_ANNOTATION: "gs://b/w"})
    others = [read(bucket, Snapshot(jobsets=[])), read(jobset(), Snapshot(jobsets=[]))]
    assert [item.restarts for item in with_local_restarts([status(tmp_path), *others], ROOTS)] == [1, 0, 0]


@pytest.mark.parametrize("made", ["absent", "folder", "link"])
def test_a_record_that_cannot_be_read_changes_nothing(tmp_path: Path, made: str) -> None:
    if made == "folder":
        (tmp_path / RECORD).mkdir()
    elif made == "link":
        (tmp_path / RECORD).symlink_to("/etc/passwd")
    before = status(tmp_path)
    assert with_restarts_in_place(before, ROOTS) == before


PAUSE: dict[str, Any] = {"pause_seconds": 8.0, "short_attempts": 4, "attempt": None}


@pytest.mark.parametrize(
    ("second", "changes", "expected"),
    [
        (21.5, {}, "the last because host s1/h0 ended with exit code 3; the next begins in 7 s"),
        (28.5, {}, ""),
        (21.5, {"short_attempts": "many"}, ""),
        (21.5, {"time": CREATED.timestamp() - 1}, ""),
    ],
    ids=["pause", "over", "malformed", "of an earlier workload"],
)
def test_a_crash_loop_is_named_during_its_pause(second: float, changes: dict[str, Any], expected: str) -> None:
    content = line(5) + line(20, **{**PAUSE, "exit_code": 3, **changes})
    expected = f"crash loop: 4 attempts in a row ended within 5 s, {expected}" if expected else ""
    assert crash_loop(content, CREATED, CREATED.timestamp() + second) == expected


@pytest.mark.parametrize(("after", "phase"), [(b"", Phase.RESTARTING), (line(30, 2), Phase.RUNNING)])
def test_hosts_that_wait_in_a_crash_loop_are_restarting(tmp_path: Path, after: bytes, phase: Phase) -> None:
    (tmp_path / RECORD).write_bytes(line(5) + line(20, **PAUSE) + after)
    running = replace(status(tmp_path), phase=Phase.RUNNING)
    known = with_restarts_in_place(running, ROOTS, lambda: CREATED.timestamp() + 22)
    assert (known.phase, known.restarts) == (phase, 1 + bool(after))
    assert ("crash loop" in known.reason) is (phase is Phase.RESTARTING)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())
KEYS = ("time", "attempt", "slice", "host", "exit_code", "pause_seconds", "short_attempts")


@given(
    st.lists(
        st.binary(max_size=30) | st.dictionaries(st.sampled_from(KEYS), VALUES).map(lambda d: json.dumps(d).encode())
    )
)
def test_arbitrary_lines_are_handled(lines: list[bytes]) -> None:
    assert len(read_record(b"\n".join([*lines, line(5)]), CREATED)) >= 1
    assert isinstance(crash_loop(b"\n".join(lines), CREATED, CREATED.timestamp()), str)
