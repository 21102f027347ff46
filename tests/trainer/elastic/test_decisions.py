"""The record of the active slices."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trainer.elastic.decisions import FILE, Decisions
from trainer.hosts.bootstrap import Host
from trainer.storage import open_place


def recorded(tmp_path: Path, *sets: list[tuple[int, str]]) -> list[list[int]]:
    """Return the sets of slices in the file, after steps with these active slices."""
    events = SimpleNamespace(write=lambda *words, **named: None)
    host = Host(num_slices=3, min_slices=1)
    job: Any = SimpleNamespace(host=host, events=events, leads=True, out=open_place(tmp_path))
    membership: Any = SimpleNamespace(active=[])
    decisions = Decisions(job, membership)
    for step, active in enumerate(sets):
        membership.active = active
        decisions.record(step)
    return [json.loads(line)["slices"] for line in (tmp_path / FILE).read_text().splitlines()]


def test_each_change_is_recorded_once(tmp_path: Path) -> None:
    a, b, c = (0, "a"), (1, "b"), (2, "c")
    assert recorded(tmp_path, [a], [a, b], [a, b], [b], [b, c]) == [[0], [0, 1], [1], [1, 2]]


def test_a_slice_that_is_lost_and_joins_within_a_step_is_recorded_as_lost(tmp_path: Path) -> None:
    a, b = (0, "a"), (1, "b")
    assert recorded(tmp_path, [a, b], [a, (1, "new")]) == [[0, 1], [0], [0, 1]]
