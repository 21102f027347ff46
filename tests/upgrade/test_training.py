"""A run of the trainer that an earlier version has begun continues with the losses that it would have had."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.upgrade import training

TOLERANCE = 1e-5  # of a loss of about 5, where another machine or another XLA adds in another order


@pytest.mark.slow
@pytest.mark.parametrize("tier", [pytest.param("local", marks=pytest.mark.extended), "persistent"])
def test_a_run_continues_bit_for_bit_from_a_checkpoint_of_an_earlier_version(
    version: Path, tier: str, tmp_path: Path
) -> None:
    recorded = training.unpack(version, tmp_path)
    continuation = recorded["continuations"][tier]
    if tier == "persistent":
        shutil.rmtree(tmp_path / "ram")
    losses = {int(step): loss for step, loss in continuation["losses"].items()}
    job = training.resume(tmp_path, max(losses))
    assert job.exit_codes() == [0] * training.SLICES, job.logs()
    source = {"local": "local checkpoint", "persistent": "storage"}[tier]
    assert f"resuming from step {continuation['step']} ({source})" in job.logs()
    assert "warning" not in job.logs()
    now = job.losses()
    assert now.keys() == losses.keys()
    if recorded["machine"] == training.machine():
        assert now == losses
    for step, loss in losses.items():
        assert float.fromhex(now[step]) == pytest.approx(float.fromhex(loss), abs=TOLERANCE), step
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["steps"] == max(losses)
    assert not list((tmp_path / "out").glob("data/*")), "the prepared data are used as they are"
