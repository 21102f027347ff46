"""Record of the active slices of an elastic run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk.jobs.output.folder import latest_progress
from xpk.jobs.output.slices import FILE, InactiveSlice, active_slices, read_changes

START = 1_769_860_800.0  # 2026-01-31T12:00:00Z


def line(second: float, slices: Any, step: Any = 0, **changes: Any) -> bytes:
    """Return a line of the record, this many seconds after the start."""
    known = {"time": START + second, "attempt": 0, "step": step, "slices": slices, "num_slices": 4, "min_slices": 2}
    return json.dumps(known | changes).encode() + b"\n"


def write_steps(folder: Path, *rows: tuple[float, int, int]) -> None:
    """Write metrics: (second, attempt, step)."""
    lines = [
        json.dumps({"time": START + second, "attempt": attempt, "step": step, "total_steps": 100, "loss": 2.0,
                    "step_seconds": 1.0})
        for second, attempt, step in rows
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(f"{text}\n" for text in lines))


def test_the_newest_change_tells_which_slices_are_active() -> None:
    known = active_slices(read_changes(line(0, [0, 2, 3]) + line(60, [2, 3], 57)))
    assert known is not None
    assert (known.active, known.count, known.num_slices, known.min_slices) == ((2, 3), 2, 4, 2)
    assert known.since == "2026-01-31T12:01:00Z"
    assert known.inactive == (
        InactiveSlice(slice=0, since="2026-01-31T12:01:00Z", step=57),
        InactiveSlice(slice=1, since=None, step=None),
    )


@pytest.mark.parametrize(
    "bad",
    [
        b'{"time": 1769860801, "slices": [0',
        b"\xff\xfe",
        line(1, [0], step=-1),
        line(1, [0, 4]),
        line(1, [0, 0]),
        line(1, [True]),
        line(1, {"0": 1}),
        line(1, [0], num_slices=2**60),
        line(1, [0], min_slices=5),
        line(float("1e300"), [0]),
        line(1, list(range(10_000))),
    ],
)
def test_an_invalid_line_loses_only_itself(bad: bytes) -> None:
    changes = read_changes(line(0, [0, 1]) + bad + b"\n" + line(2, [1], 9))
    assert [sorted(change.slices) for change in changes] == [[0, 1], [1]]


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())
KEYS = st.sampled_from(("time", "attempt", "step", "slices", "num_slices", "min_slices"))


@given(st.lists(st.binary(max_size=30) | st.dictionaries(KEYS, VALUES).map(lambda d: json.dumps(d).encode())))
def test_arbitrary_lines_are_handled(lines: list[bytes]) -> None:
    known = active_slices(read_changes(b"\n".join([*lines, line(5, [0, 1, 2])])))
    assert known is not None and known.active == (0, 1, 2)


def test_progress_has_the_active_slices(tmp_path: Path) -> None:
    write_steps(tmp_path, (1, 0, 1), (2, 0, 2))
    (tmp_path / FILE).write_bytes(line(0, [0, 1, 2, 3]) + line(2, [0, 1, 2], 2))
    progress = latest_progress(str(tmp_path), elastic_since=START)
    assert progress is not None and progress.slices is not None and progress.slices.active == (0, 1, 2)
    other = latest_progress(str(tmp_path))
    assert other is not None and other.slices is None


def test_slices_of_an_earlier_workload_are_ignored(tmp_path: Path) -> None:
    write_steps(tmp_path, (1, 0, 1))
    (tmp_path / FILE).write_bytes(line(0, [0]))
    progress = latest_progress(str(tmp_path), elastic_since=START + 10)
    assert progress is not None and progress.slices is None


def test_the_remaining_time_is_the_same_after_a_change_of_the_leading_slice(tmp_path: Path) -> None:
    rows = [(2.0 * step, 0 if step < 9 else 3, step) for step in range(1, 11)]
    write_steps(tmp_path, *rows)
    progress = latest_progress(str(tmp_path), elastic_since=START)
    assert progress is not None and progress.eta_seconds == 180.0


def test_steps_before_a_restart_of_all_slices_do_not_change_the_remaining_time(tmp_path: Path) -> None:
    write_steps(tmp_path, (1, 0, 4), (2, 0, 5), (100, 1, 5), (102, 1, 6), (104, 0, 7))
    progress = latest_progress(str(tmp_path), elastic_since=START)
    assert progress is not None and progress.eta_seconds == 186.0
