"""Replayed traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.simulation.queues import NOW, cluster
from xpk.jobs.simulation.scenario import scenario_of
from xpk.jobs.simulation.trace import read_trace, replay
from xpk.model import names
from xpk.model.errors import UsageError, XpkError


def written(folder: Path, *rows: Any) -> Path:
    """Write a trace; texts are lines as they are."""
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def row(name: str, slices: int, submit: Any, seconds: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "slices": slices, "submit": submit, "seconds": seconds, **more}


def test_waits_and_preemptions_are_counted_by_queue(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        row("all", 4, 0, 1000),
        row("mine", 1, 100, 50, queue="red", type="v5litepod-8", priority="low"),
        "",
        row("later", 4, 400.5, 10),
    )
    result = replay(*read_trace(path, scenario_of(cluster(), NOW)))
    own, red = result.replayed
    assert (own.queue, own.workloads, own.started, own.preemptions) == (names.QUEUE, 2, 2, 1)
    assert (red.queue, red.wait_mean, red.wait_max) == ("red", 30.0, 30.0)  # a preempted workload stops within 30 s
    assert (own.wait_50, own.wait_max) == (0.0, 679.5)
    assert result.replayed_seconds == 1090.0
    assert result.pending == () and result.loops == ()


def test_problems_are_reported_by_line(tmp_path: Path) -> None:
    lines = (
        "{", "[]", {"name": "a"}, row("a", 0, 0, 1), row("a", 1, "now", 1), row("a", 1, 0, 1, color="red"),
        row("a", 1, 0, 1, queue="rad"), row("a", 1, 0, 1, type="v5p-8"), row("a", 1, 0, 1, priority="x"),
    )  # fmt: skip
    with pytest.raises(UsageError) as refused:
        read_trace(written(tmp_path, *lines), scenario_of(cluster(), NOW))
    problems = refused.value.problems
    assert [problem.partition(":")[0] for problem in problems] == [f"line {number}" for number in range(1, 10)]
    assert problems[2] == "line 3: missing slices, submit, seconds"
    assert problems[6] == "line 7: queue 'rad' not found; choose from red"


def test_an_empty_or_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no workloads"):
        read_trace(written(tmp_path), scenario_of(cluster(), NOW))
    with pytest.raises(XpkError, match=r"none': No such file or directory$"):
        read_trace(tmp_path / "none", scenario_of(cluster(), NOW))
