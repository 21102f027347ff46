"""Runs that choose their checkpoint intervals: the losses of a run with a fixed one, also after a kill."""

import json
from pathlib import Path

import pytest

from tests.trainer.small import Cluster, start
from tests.waiting import until

STEPS = 1000  # so many that the first attempt is killed before its end
SETTINGS = [f"run.steps={STEPS}", "run.eval_every=0", "data.max_bytes=50000", "run.log_every=100"]
AUTO = [
    *("checkpoint.every=auto", "checkpoint.local_every=auto"),
    *("checkpoint.mtbf_chip_hours=0.001", "checkpoint.auto_max_seconds=0.5"),  # so that it saves often
]


def saves(job: Cluster, event: str = "save") -> list[int]:
    return [record["step"] for record in job.events(0) if record["event"] == event]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_with_automatic_intervals_has_the_losses_of_one_with_a_fixed_interval(tmp_path: Path) -> None:
    fixed = start(tmp_path / "fixed", [*SETTINGS, "checkpoint.every=1000"], chips=1)
    assert fixed.exit_codes(200) == [0, 0], fixed.logs()
    out, settings = tmp_path / "auto", [*SETTINGS, *AUTO, f"checkpoint.local_path={tmp_path / 'ram'}"]
    first = start(out, settings, chips=1)
    until(lambda: saves(first) and saves(first, "local_save"), seconds=200)
    first.kill()
    losses = first.losses()
    second = start(out, settings, attempt=1, chips=1)
    assert second.exit_codes(200) == [0, 0], second.logs()
    losses |= second.losses()
    assert losses == fixed.losses()
    assert max(losses) == STEPS == saves(second)[-1]
    for host in (0, 1):
        begun = [event["step"] for event in second.events(host) if event["event"] == "save_begin"]
        assert begun == [event["step"] for event in second.events(0) if event["event"] == "save_begin"]
    chosen = [event for event in first.events(0) if event["event"] == "intervals"]
    assert chosen[-1]["every"] > 0 and chosen[-1]["local_every"] > 0
    record = json.loads((out / "measurements.json").read_text())
    assert record["tally"]["failures"] == 1 and record["stopped"]
