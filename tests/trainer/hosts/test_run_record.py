"""The record that a run keeps from one attempt to the next."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.checkpoint.tiers import a_job
from tests.trainer.hosts.connections import connected, together
from tests.waiting import until
from trainer.hosts.run_record import FILE, PERIOD_SECONDS, RunRecord, Tally, former_record

TRAITS = {"model.embed": "32"}


def begin(folder: Path, traits: dict[str, str] = TRAITS) -> tuple[Any, RunRecord]:
    """Return the job and the record of a new attempt of one host."""
    job = a_job(folder)
    record = RunRecord(job, traits)
    record.share()
    return job, record


def kept(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "out" / FILE).read_text())
    return content


def run_attempt(folder: Path, *, stops: bool, seconds: float = 2.0) -> None:
    job, record = begin(folder)
    job.measurements.record_step(seconds)
    record.keep()
    until(lambda: (folder / "out" / FILE).exists(), every=0.01)
    assert record._writing
    record._writing.join()
    if stops:
        record.stop()


def test_an_attempt_that_ends_without_notice_has_failed(tmp_path: Path) -> None:
    run_attempt(tmp_path, stops=False)
    run_attempt(tmp_path, stops=True)
    job, record = begin(tmp_path)
    assert record.tally().failures == 1
    assert job.measurements.seconds("step") == [2.0, 2.0]
    assert kept(tmp_path)["stopped"] is True


def test_durations_of_other_settings_are_forgotten_but_not_the_failures(tmp_path: Path) -> None:
    run_attempt(tmp_path, stops=False)
    job, record = begin(tmp_path, {"model.embed": "64"})
    assert record.tally().failures == 1 and not job.measurements.seconds("step")


def test_the_attempt_after_a_hang_is_told_of_it(tmp_path: Path) -> None:
    run_attempt(tmp_path, stops=False)
    job, record = begin(tmp_path)
    job.watchdog.on_hang()
    record.stop()  # changes nothing
    job, record = begin(tmp_path)
    assert not job.measurements.trusts_former and record.tally().failures == 2


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"tally": {}}', '{"tally": {"failures": -1}}', '{"tally": {"unknown": 1}}', "\udcff"],
)
def test_a_damaged_record_is_ignored(content: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / FILE).write_bytes(content.encode(errors="surrogateescape"))
    assert begin(tmp_path)[1].tally().failures == 0


def test_all_hosts_get_the_record_that_process_0_reads(tmp_path: Path) -> None:
    run_attempt(tmp_path, stops=False)
    jobs = [a_job(tmp_path, peers=peers) for peers in connected(2)[0]]
    records = [RunRecord(job, TRAITS) for job in jobs]
    content = kept(tmp_path) | {"settings": records[0]._settings}
    (tmp_path / "out" / FILE).write_text(json.dumps(content))
    together([record.share for record in records])
    assert [job.measurements.seconds("step") for job in jobs] == [[2.0], [2.0]]
    assert [record.tally().failures for record in records] == [1, 1]


def test_of_elastic_slices_the_leading_one_writes_and_the_next_one_continues_its_tally(tmp_path: Path) -> None:
    def slice_(*, leads: bool) -> RunRecord:
        membership: Any = SimpleNamespace(is_leading=leads)
        record = RunRecord(dataclasses.replace(a_job(tmp_path), slices=membership), TRAITS)
        record.share()
        return record

    other = slice_(leads=False)
    other.stop()
    assert not (tmp_path / "out" / FILE).exists()
    leading = slice_(leads=True)
    leading.count_restore("checkpoint")
    leading.keep()
    until(lambda: (tmp_path / "out" / FILE).exists(), every=0.01)
    joining = slice_(leads=False)
    assert joining.tally().failures == 1  # that is, if it had to begin the run again
    joining.adopt(leading.tally())
    assert (joining.tally().failures, joining.tally().persistent_restores) == (0, 1)


def test_the_time_in_which_a_slice_waits_for_its_role_does_not_count(tmp_path: Path) -> None:
    _, record = begin(tmp_path)
    record._began -= 1000.0
    record.begin()
    assert record.tally().run_seconds < 100


def test_the_time_after_the_last_write_counts_up_to_a_period() -> None:
    content = {
        "time": 1000.0, "settings": "a", "stopped": False, "hung": False, "seconds": {},
        "tally": dataclasses.asdict(Tally(failures=2, run_seconds=50.0)),
    }  # fmt: skip
    assert former_record(content, "a", 1010.0)["tally"]["run_seconds"] == 60.0
    assert former_record(content, "a", 9000.0)["tally"]["run_seconds"] == 50.0 + PERIOD_SECONDS
    assert former_record(content, "a", 900.0)["tally"]["run_seconds"] == 50.0
    stopped = former_record(content | {"stopped": True}, "a", 9000.0)["tally"]
    assert (stopped["run_seconds"], stopped["failures"]) == (50.0, 2)
