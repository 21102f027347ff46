"""Output folders with arbitrary content: a report is still written."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.counts import inputs
from tests.fuzz.mutations import damaged
from tests.jobs.objects import ROOTS, jobset
from tests.jobs.report.runs import one_kill
from xpk.jobs.output.folder import latest_progress
from xpk.jobs.output.program_log import ProgramLog, read_lines
from xpk.jobs.report.figures import account, write_page
from xpk.jobs.report.goodput import goodput
from xpk.jobs.report.page import ReportFacts, render_report
from xpk.jobs.report.programs import read_run
from xpk.jobs.report.record import RunRecord, read_record
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import read
from xpk.model import names
from xpk_shared.event_files import decode_event, encode_event, frame_record, read_block

NOW = 1_800_000_000.0
FACTS = ReportFacts(
    workload="w", cluster="c", accelerator="v5litepod-8", slices=2, hosts_per_slice=2, chips_per_host=4,
    state="Running", command=("true",), config={}, restarts=(), kill_time=None, end=NOW + 100, written=NOW,
)  # fmt: skip
LINES = [
    b'{"step": Infinity, "loss": 1, "time": 1800000001}',
    b'{"step": 999, "time": 1800000001, "loss": 1' + b"0" * 400 + b"}",
    b'{"step": 999, "time": 1800000001, "loss": 1' + b"0" * 5000 + b"}",
    b"[" * 6000,
    b'{"a":' * 2000,
    b'{"step": 999, "loss": 1, "time": 1e308}',
    b'{"step": 999, "loss": 1, "time": -1e15}',
    b'{"step": 1e400, "loss": 1e400, "time": NaN}',
    b'{"step": "5.5", "loss": "x", "time": 1800000001}',
    b'{"step": 999, "loss": 1, "time": 1800000001, "attempt": 1e300, "step_seconds": 1e300}',
    b"\xff\xfe\x00" * 100,
    b'{"step": 999, "loss": {}, "time": 1800000001, "step_seconds": []}',
]
EVENTS = [
    b'{"time": 1800000001, "event": "start", "slice": 0, "host": 0, "attempt": 1000000000000000}',
    b'{"time": 1800000001, "event": "start", "slice": 1000000000000000, "host": 0, "attempt": 0}',
    b'{"time": 1e308, "event": "restore", "slice": 0, "host": 0, "attempt": 0, "seconds": 1e308, "step": -1}',
    b'{"time": 1800000001, "event": "\\u001b[2J", "slice": 0, "host": 0, "attempt": 0, "reason": {"a": []}}',
]
ODD: list[Any] = [0, -1, 1, 5, 2**63, 10**400, 1e308, -1e308, 1e-308, float("inf"), float("nan"), NOW, 4e9, 0.5, -NOW]
ODD += [True, None, "", "x", [], {}, [[]], "\x1b[2J", "\ud800"]
VALUES = st.sampled_from(ODD)
TIMES = st.sampled_from([NOW + seconds for seconds in (-5.0, 0.0, 1.0, 2.5, 60.0, 1000.0)])
STEPS, SLICE = st.integers(0, 5), st.integers(0, 2)
NAMES = st.sampled_from(
    ["start", "init", "data", "restore", "compile", "save", "eval", "done", "fail", "peer_lost", "slices", "x"]
)


@dataclass
class Files:
    """A folder in memory."""

    metrics: bytes
    events: dict[str, bytes] = field(default_factory=dict)
    result: bytes | None = None
    slices: bytes = b""
    progress: bytes = b""

    def read(self, path: str) -> bytes | None:
        files = {"metrics.jsonl": self.metrics, "result.json": self.result, "slices.jsonl": self.slices}
        return (files | {"progress.jsonl": self.progress}).get(path)

    def read_all(self, folder: str) -> dict[str, bytes]:
        return self.events


def lines_of(*keys: str, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    lines = st.fixed_dictionaries(fixed, optional=dict.fromkeys(keys, VALUES))
    return st.lists(lines, max_size=6).map(lambda rows: b"\n".join(json.dumps(row).encode() for row in rows))


@inputs(0.0175)
@given(
    lines_of("time", "step", "attempt", "loss", "eval_loss", "step_seconds", "grad_norm", "mfu", "tokens_per_second"),
    lines_of("time", "slice", "host", "attempt", "step", "seconds", "reason", "peer", "read", event=NAMES | VALUES),
    lines_of("steps", "final_loss"),
)
def test_any_values_make_a_page(metrics: bytes, events: bytes, result: bytes) -> None:
    assert "<svg" in page(read_record(Files(metrics, {"s0-h0.jsonl": events, "s0-h1.jsonl": events}, result)))


SLICES = b"""
{"time": 1800000000, "event": "slices", "slice": 0, "host": 0, "attempt": 0, "slices": [0]}
{"time": 1800000000, "event": "restore", "slice": 0, "host": 0, "attempt": 0, "step": 0, "source": "peer"}
"""
CHANGE = b'{"time": 1800000000, "step": 0, "slices": [0], "num_slices": 2, "min_slices": 1}'
KEYS = ("step", "seconds", "reason", "peer", "source")


@inputs(0.0175)
@given(
    lines_of("attempt", "eval_loss", time=TIMES, step=STEPS, loss=STEPS),
    *(lines_of(*KEYS, event=NAMES | VALUES, time=TIMES, slice=SLICE, host=SLICE, attempt=SLICE) for _ in range(2)),
    lines_of("attempt", time=TIMES, step=STEPS | VALUES, slices=st.lists(SLICE) | VALUES, num_slices=SLICE | VALUES,
             min_slices=SLICE | VALUES),
)  # fmt: skip
def test_any_values_of_elastic_slices_make_a_page(metrics: bytes, one: bytes, other: bytes, changes: bytes) -> None:
    events = {"s0-h0.jsonl": SLICES + one, "s1-h0.jsonl": other}
    record = read_record(Files(metrics, events, slices=CHANGE + b"\n" + changes))
    assert record.is_elastic and "<svg" in page(record)
    assert sum(goodput(record).microseconds.values()) == goodput(record).wall


@inputs(0.0175)
@given(
    lines_of("attempt", "started", "loss", "eval_loss", "steps", "tokens", "step_seconds", "resumed_step", "\x1b[2J",
             time=TIMES | VALUES, step=STEPS | VALUES),
    st.binary(max_size=20),
)  # fmt: skip
def test_any_values_of_other_programs_make_a_page(lines: bytes, end: bytes) -> None:
    log = read_lines(lines + b"\n" + end)
    record = read_run(Files(b"", progress=lines + b"\n" + end), ProgramLog)
    made = page(record)
    assert "\x1b" not in made and ("<svg" in made or not record.steps)
    assert sum(goodput(record).microseconds.values()) == goodput(record).wall
    assert len(record.steps) + len(record.lost_steps) <= len(log.steps)


@inputs(0.0175)
@given(
    damaged(
        st.lists(st.tuples(STEPS, st.sampled_from(["loss", "lr", "\x1b[2J", ""]), st.floats(width=32)), max_size=6).map(
            lambda rows: b"".join(frame_record(encode_event(step, {tag: at}, NOW)) for step, tag, at in rows)
        )
    ),
    st.booleans(),
)
def test_any_event_files_are_read(content: bytes, is_aligned: bool) -> None:
    block = read_block(content, 1 << 16, is_aligned=is_aligned)
    for event in filter(None, map(decode_event, block.contents)):
        assert event.values and 0 <= event.step < 1 << 63
    decode_event(content)


def page(record: RunRecord) -> str:
    began = time.monotonic()
    made = render_report(record, FACTS)
    assert time.monotonic() - began < 10
    return made


@pytest.mark.parametrize("line", LINES)
def test_one_bad_line_loses_only_itself(tmp_path: Path, line: bytes) -> None:
    folder = one_kill(tmp_path)
    clean = read_record(Files((folder / "metrics.jsonl").read_bytes()))
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(line + b"\n")
    status = read(jobset(annotations={names.OUTPUT_ANNOTATION: str(folder), names.TYPE_ANNOTATION: "v5litepod-8"}),
                  Snapshot(jobsets=[]))  # fmt: skip
    outcome = account(status, "dev", ROOTS)
    assert outcome.record.steps[:150] == clean.steps and outcome.record.damaged_lines <= 1
    assert "<svg" in write_page(outcome, tmp_path / "page.html").read_text()
    json.dumps(outcome.figures, allow_nan=False)
    progress = latest_progress(str(folder))
    assert progress and progress.step in (150, 999)


@pytest.mark.parametrize("line", EVENTS)
def test_one_bad_event_loses_only_itself(tmp_path: Path, line: bytes) -> None:
    folder = one_kill(tmp_path)
    with (folder / "events" / "s0-h0.jsonl").open("ab") as file:
        file.write(line + b"\n")
    made = page(read_record(Files((folder / "metrics.jsonl").read_bytes(), {"s0-h0.jsonl": line})))
    assert "<svg" in made and "\x1b" not in made
