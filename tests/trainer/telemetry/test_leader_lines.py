"""The metrics of elastic slices are written once each, by whichever slice leads."""

import json
from pathlib import Path

from trainer.storage import open_place
from trainer.telemetry.leader_lines import LeaderLines


def lines(file: Path, *, leads: bool = True) -> LeaderLines:
    return LeaderLines(open_place(file), lambda: leads)


def line(step: int) -> dict[str, float]:
    return {"step": step, "loss": 1.5}


def steps(file: Path) -> list[int]:
    return [json.loads(text)["step"] for text in file.read_text().splitlines()]


def test_a_new_leader_writes_what_the_former_one_did_not(tmp_path: Path) -> None:
    file, is_second = tmp_path / "metrics.jsonl", [False]
    first, second = lines(file), LeaderLines(open_place(file), lambda: is_second[0])
    for step in (1, 2, 3):
        second.write(line(step))
        if step < 3:
            first.write(line(step))
    is_second[0] = True
    second.write(line(4))
    assert steps(file) == [1, 2, 3, 4]


def test_a_former_leader_that_was_frozen_repeats_no_line(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    first, second = lines(file), lines(file)
    first.write(line(1))
    for step in (2, 3):
        second.write(line(step))
    first.write(line(2))
    assert steps(file) == [1, 2, 3]


def test_a_slice_that_does_not_lead_writes_nothing(tmp_path: Path) -> None:
    lines(tmp_path / "metrics.jsonl", leads=False).write(line(1))
    assert not (tmp_path / "metrics.jsonl").exists()
