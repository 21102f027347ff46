"""Progress of programs other than the bundled trainer: lines of progress.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xpk.jobs.output.folder import Progress, latest_progress
from xpk.jobs.output.program_log import ProgramLog, program_log, read_lines


def shown(folder: Path, *lines: dict[str, Any] | str) -> Progress | None:
    """Return the progress of a workload that has written these lines."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "progress.jsonl").write_text("".join(f"{text}\n" for text in texts))
    return latest_progress(str(folder))


def steps_of(log: ProgramLog) -> list[list[int]]:
    return [[step.step for step in attempt.steps] for attempt in log.attempts]


def test_progress_has_the_step_the_loss_and_rates(tmp_path: Path) -> None:
    lines = [
        {"time": 1000.0 + 2 * step, "step": step, "steps": 100, "loss": 50 / step, "tokens": 4096}
        for step in range(10, 51, 10)
    ]
    result = shown(tmp_path, *lines)
    assert result is not None and result.has_loss
    assert (result.step, result.total_steps, result.loss, result.step_seconds) == (50, 100, 1.0, 2.0)
    assert (result.throughput, result.throughput_unit, result.eta_seconds) == (2048, "tokens/s", 100.0)
    assert result.time == "1970-01-01T00:18:20Z"


def test_lines_may_lack_everything_but_the_step(tmp_path: Path) -> None:
    assert shown(tmp_path, {"step": 3}, {"step": 4}) == Progress(4, None, has_loss=False)
    assert shown(tmp_path, {"step": 3, "loss": None}) == Progress(3, None)
    assert shown(tmp_path, {"loss": 1.5}, {"steps": 10}) is None


def test_the_loss_of_an_earlier_line_is_shown_if_not_every_line_has_one(tmp_path: Path) -> None:
    result = shown(tmp_path, {"step": 10, "loss": 2.5}, {"step": 11}, {"step": 12})
    assert result == Progress(12, 2.5)


def test_the_metrics_of_the_bundled_trainer_come_first(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 7, "loss": 1}\n')
    assert shown(tmp_path, {"step": 3}) == Progress(7, 1.0)


def test_several_lines_about_a_step_are_one() -> None:
    log = program_log([{"step": 1, "loss": 2.0}, {"step": 1, "lr": 0.1}, {"step": 1, "eval_loss": 3.0}])
    (attempt,) = log.attempts
    (step,), (evaluation,) = attempt.steps, attempt.evals
    assert (step.loss, step.numbers, evaluation.loss) == (2.0, {"lr": 0.1}, 3.0)


@pytest.mark.parametrize(
    "second",
    [
        [{"step": 2, "attempt": 1}],  # by the number of the attempt
        [{"attempt": 1, "started": 50.0}, {"step": 2}],  # noted by the supervisor, in front of a shell's lines
        [{"step": 2}],  # by the step alone
    ],
)
def test_a_restart_begins_an_attempt(second: list[dict[str, Any]]) -> None:
    first = [{"step": step, **({"attempt": 0} if "attempt" in second[0] else {})} for step in (1, 2, 3)]
    assert steps_of(program_log([*first, *second])) == [[1, 2, 3], [2]]


def test_processes_of_one_attempt_are_one_attempt() -> None:
    lines = [{"attempt": 1, "started": 5.0}, *({"attempt": 1, "started": 5.0, "step": step} for step in (1, 2))]
    assert steps_of(program_log(lines)) == [[1, 2]]


def test_a_line_stands_for_the_steps_since_the_line_before() -> None:
    lines = [{"step": step, "time": 100.0 + step, "started": 80.0} for step in (10, 20, 30)]
    log = program_log([*lines, {"step": 30, "time": 150.0, "started": 145.0}])
    first, second, third, again = log.steps
    assert [step.count for step in log.steps] == [10, 10, 10, 10]
    assert (first.seconds, second.seconds, third.seconds, again.seconds) == (1.0, 1.0, 1.0, 0.5)


def test_the_resumed_step_tells_how_many_steps_the_first_line_stands_for() -> None:
    lines = [{"step": step, "attempt": 0} for step in (10, 20)]
    log = program_log([*lines, {"attempt": 1, "resumed_step": 17}, {"step": 20, "attempt": 1}])
    assert log.attempts[1].resumed_step == 17 and log.attempts[1].steps[0].count == 3


HOSTILE = [
    b"not JSON", b"{", b"[1]", b"null", b"\xff\xfe\x00", b"[" * 5000, b'{"step": ' + b"9" * 5000 + b"}",
    b'{"step": -1}', b'{"step": NaN}', b'{"step": 1e999}', b'{"step": "7"}', b'{"step": true}', b'{"step": 1.5}',
    b'{"step": {}}', b'{"loss": 1}', b"{}", b'{"step": null}', b'{"step": "' + b"x" * (2 << 20) + b'"}',
]  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_an_invalid_line_is_left_out_and_counted(line: bytes, tmp_path: Path) -> None:
    content = b'{"step": 1, "loss": 5.5}\n' + line + b'\n{"step": 2, "loss": 5.0}\n'
    log = read_lines(content)
    assert steps_of(log) == [[1, 2]] and log.ignored_lines == 1
    (tmp_path / "progress.jsonl").write_bytes(content)
    assert latest_progress(str(tmp_path)) == Progress(2, 5.0, ignored_lines=len(line) < 10_000)


def test_a_very_long_last_line_does_not_hide_the_progress(tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").write_bytes(b'{"step": 1}\n{"x": "' + b"x" * (1 << 20))
    assert latest_progress(str(tmp_path)) == Progress(1, None, has_loss=False)


def test_names_and_numbers_of_other_quantities_are_limited() -> None:
    odd = {"\x1b[2Jname" + "x" * 100: 1.0, "text": "x", "nan": float("nan"), "huge": 10**400, "list": [1], "flag": True}
    log = program_log([{"step": 1, **odd}, {"step": 2, **{f"n{index}": index for index in range(100)}}])
    (name,) = log.steps[0].numbers
    assert "\x1b" not in name and len(name) < 70
    assert len(log.steps[1].numbers) == 11
