"""Restarts in place, from the record in the output folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.objects import ADMITTED, ROOTS, exited, jobset, restarted
from xpk.jobs.status.fields import Snapshot, when
from xpk.jobs.status.in_place import read_record, with_local_restarts, with_restarts_in_place
from xpk.jobs.status.reader import read
from xpk.model import names
from xpk.model.status import WorkloadStatus
from xpk_shared.supervisor.names import RECORD

CREATED = when("2026-01-31T12:00:00Z")


def line(second: float, attempt: int = 1, **changes: Any) -> bytes:
    """Return a line of the record, so many seconds after the workload was created."""
    record = {"time": CREATED.timestamp() + second, "job": "u", "attempt": attempt, "restarts_in_place": 1}
    return json.dumps({**record, "slice": 1, "host": 0, "exit_code": 137, **changes}).encode() + b"\n"


def status(folder: Path, *events: Any, count: int = 0) -> WorkloadStatus:
    """Return the status of a workload whose JobSet has restarted so often."""
    annotations = {names.OUTPUT_ANNOTATION: str(folder)}
    return read(
        jobset(annotations=annotations, restarts=count),
        Snapshot(jobsets=[], workloads=[ADMITTED], events=list(events)),
    )


def test_they_are_counted_and_explained_between_those_of_the_jobset(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(line(5) + line(30, 2, exit_code=76))
    known = with_restarts_in_place(status(tmp_path, exited(1, 3, 12), restarted(1, 12.288), count=1), ROOTS)
    assert (known.restarts, known.restarts_in_place) == (3, 2)
    assert [(each.attempt, each.exit_code) for each in known.restart_history] == [(0, 137), (1, 3), (2, 76)]
    assert known.restart_history[0].cause == "host s1/h0 ended with exit code 137 (SIGKILL); restarted in place"
    assert known.restart_history[0].time == "2026-01-31T12:00:05Z"


def test_a_frozen_host_is_named_without_the_exit_code_of_its_end(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(line(5, silent=True))
    (restart,) = with_restarts_in_place(status(tmp_path), ROOTS).restart_history
    assert restart.cause == "host s1/h0 did not answer; restarted in place"
    assert (restart.slice, restart.host, restart.exit_code) == (1, 0, None)


def test_those_of_an_earlier_workload_of_the_same_name_do_not_count(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(line(-100) + line(5))
    assert with_restarts_in_place(status(tmp_path), ROOTS).restarts == 1


def test_a_list_reads_folders_but_no_bucket(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(line(5))
    bucket = jobset(annotations={names.OUTPUT_ANNOTATION: "gs://b/w"})
    others = [read(bucket, Snapshot(jobsets=[])), read(jobset(), Snapshot(jobsets=[]))]
    assert [each.restarts for each in with_local_restarts([status(tmp_path), *others], ROOTS)] == [1, 0, 0]


@pytest.mark.parametrize("made", ["absent", "folder", "link"])
def test_a_record_that_cannot_be_read_changes_nothing(tmp_path: Path, made: str) -> None:
    if made == "folder":
        (tmp_path / RECORD).mkdir()
    elif made == "link":
        (tmp_path / RECORD).symlink_to("/etc/passwd")
    before = status(tmp_path)
    assert with_restarts_in_place(before, ROOTS) == before


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())
KEYS = ("time", "attempt", "slice", "host", "exit_code")


@given(
    st.lists(
        st.binary(max_size=30) | st.dictionaries(st.sampled_from(KEYS), VALUES).map(lambda d: json.dumps(d).encode())
    )
)
def test_any_lines_are_read(lines: list[bytes]) -> None:
    assert len(read_record(b"\n".join([*lines, line(5)]), CREATED)) >= 1
