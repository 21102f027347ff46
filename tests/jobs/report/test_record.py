"""Reading the complete or damaged records of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.jobs.report.runs import RunWriter, one_kill
from xpk.jobs.report.programs import read_folder
from xpk.jobs.report.record import HostId, RunRecord, read_record


def test_an_empty_or_missing_folder_gives_an_empty_record(tmp_path: Path) -> None:
    assert read_folder(tmp_path) == RunRecord()
    assert read_folder(tmp_path / "missing").empty


def test_an_undisturbed_run_is_read_completely(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 20)
    run.evaluate(20)
    run.done(20)
    record = read_folder(run.write())
    assert [line.step for line in record.steps] == list(range(1, 21))
    assert record.lost_steps == () and record.damaged_lines == 0
    assert record.attempts == (0,)
    assert record.evals[0].step == 20 and record.evals[0].tokens == 65536
    assert list(record.events) == [HostId(0, 0), HostId(0, 1), HostId(1, 0), HostId(1, 1)]
    assert record.events[HostId(0, 0)][0].details == {"pid": 4711}
    assert record.result == {"steps": 20, "final_loss": 2.0}


def test_the_last_record_of_a_step_counts_and_earlier_ones_are_lost(tmp_path: Path) -> None:
    record = read_folder(one_kill(tmp_path))
    assert [line.step for line in record.steps] == list(range(1, 151))
    assert [(line.attempt, line.step) for line in record.lost_steps] == [(0, step) for step in range(51, 69)]
    assert {line.attempt for line in record.steps if line.step > 50} == {1}


def test_a_step_is_lost_as_soon_as_a_later_attempt_restored_from_before_it(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 9)
    run.kill((1, 1))
    run.train(5, 6)
    record = read_folder(run.write())
    assert [line.step for line in record.steps] == [1, 2, 3, 4, 5, 6]
    assert [line.step for line in record.lost_steps] == [6, 7, 8, 9]


@pytest.mark.parametrize("cut", range(1, 90, 7))
def test_a_truncated_last_line_is_ignored(tmp_path: Path, cut: int) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 5)
    folder = run.write()
    metrics = folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-cut])
    record = read_folder(folder)
    assert len(record.steps) == (5 if cut == 1 else 4)
    assert record.damaged_lines == (0 if cut == 1 else 1)


def test_a_line_appended_to_a_truncated_one_is_read(tmp_path: Path) -> None:
    whole = {"time": 2.0, "attempt": 1, "step": 1, "loss": 3.0, "step_seconds": 0.5}
    (tmp_path / "metrics.jsonl").write_text('{"time": 1.0, "attempt": 0, "lo' + json.dumps(whole) + "\n")
    record = read_folder(tmp_path)
    assert [(line.step, line.attempt, line.loss) for line in record.steps] == [(1, 1, 3.0)]
    assert record.damaged_lines == 1


def test_invalid_lines_and_bytes_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "s0-h0.jsonl").write_bytes(b'[1, 2]\n{"time": "x"}\n\xff\xfe\n{"event": "start"}\n')
    (tmp_path / "events" / "notes.txt").write_text("hello")
    (tmp_path / "result.json").write_text("{")
    record = read_folder(tmp_path)
    assert not record.events and record.result is None and record.damaged_lines == 3


def test_a_nonnumeric_loss_is_kept_as_nan(tmp_path: Path) -> None:
    lines = '{"time": 1, "step": 1, "loss": NaN, "step_seconds": 1}\n{"time": 2, "step": 2, "loss": null}\n'
    (tmp_path / "metrics.jsonl").write_text(lines)
    assert all(math.isnan(line.loss) for line in read_folder(tmp_path).steps)


def test_any_store_can_be_read_from() -> None:
    class Memory:
        def read(self, path: str) -> bytes | None:
            return b'{"time": 1, "step": 1, "loss": 2.5}\n' if path == "metrics.jsonl" else None

        def read_all(self, folder: str) -> dict[str, bytes]:
            return {}

    assert read_record(Memory()).steps[0].loss == 2.5


def test_a_file_in_place_of_a_folder_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("")
    assert read_folder(tmp_path).empty
