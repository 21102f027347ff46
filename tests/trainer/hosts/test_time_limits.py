"""Time limits: as configured, or from measured durations."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.trainer import cloud_storage
from trainer.config import Checkpoint, Config, Observe
from trainer.hosts import timeouts
from trainer.hosts.measurements import Measurements
from trainer.hosts.time_limits import TimeLimits


def limits(kind: str, seconds: list[float], former: list[float] | None = None, **observe: Any) -> TimeLimits:
    measured = Measurements({kind: former or []})
    for value in seconds:
        measured.record_step(value) if kind == "step" else measured.record(kind, value)
    return TimeLimits(Config(observe=Observe(**observe)), measured)


def test_a_fixed_limit_is_as_before() -> None:
    assert limits("step", [1.0] * 200, hang_seconds=300.0).step() == 300.0
    assert limits("step", [1.0] * 180 + [40.0] * 20, hang_seconds=300.0).step() == 800.0
    assert limits("evaluation", [90.0] * 30, hang_seconds=300.0).evaluation() == 0.0
    assert not limits("step", [], hang_seconds=0.0).is_on and limits("step", []).is_on


def test_steps_have_a_fixed_limit_until_enough_are_measured() -> None:
    assert limits("step", []).step() == 300.0
    assert limits("step", [27.8] * 99).step() == 20 * 27.8
    assert limits("step", [27.8] * 100).step() == 180.0
    assert limits("step", [60.0] * 100).step() == 300.0


def test_steps_of_elastic_slices_may_take_many_times_as_long() -> None:
    """A slice computes the shares of those that are lost."""
    measured = limits("step", [60.0] * 100).measured
    assert TimeLimits(Config(), measured, is_elastic=True).step() == 1200.0


def test_other_slices_are_awaited_for_longer_than_each_awaits_its_own_work() -> None:
    """One that hangs ends after the limit of a step, and its work is done by another one, within a step's limit."""
    assert limits("step", [], hang_seconds=12.0).others() == 54.0
    assert limits("step", [60.0] * 100).others() == 630.0
    assert limits("step", [1.0] * 100).others() == 180.0 + 300.0 + 30.0, "one that has just joined has 300 s"


def test_an_attempt_has_the_fixed_limit_until_it_has_measured_steps_itself() -> None:
    """Steps may be slower than those of the attempt before."""
    assert limits("step", [], [1.0] * 200).step() == 300.0
    assert limits("step", [400.0] * 19, [1.0] * 200).step() == 8000.0
    assert limits("step", [400.0] * 20, [1.0] * 200).step() == 2000.0


def test_saves_programs_and_joins_have_limits_of_their_own() -> None:
    assert limits("save", [1.0] * 4).storage("save") == 1800.0
    assert limits("save", [1.0] * 5).storage("save") == 300.0
    assert limits("save", [900.0] * 5).storage("save") == 4500.0
    assert limits("save", [1.0] * 5).storage() == 1800.0, "choosing a checkpoint"
    assert limits("restore/local", [1.0] * 3).storage("restore/local") == 300.0
    assert limits("restore/local", [1.0] * 3).storage("restore/checkpoint") == 1800.0
    assert limits("restore/checkpoint", [900.0] * 3).storage("restore/checkpoint") == 4500.0
    assert limits("compile/train", [1200.0]).compilation("train") == 6000.0
    assert limits("compile/train", [1.0]).compilation("train") == 900.0
    assert limits("compile/train", [1.0]).compilation("evaluate") == 7200.0
    assert limits("join", [1.0] * 3).join() == 60.0 and limits("join", [1.0] * 2).join() == 300.0
    assert limits("chips", [1.0] * 3).chips() == 180.0 and limits("chips", [1.0] * 2).chips() == 900.0
    assert limits("chips", [100.0] * 3).chips() == 500.0


def test_an_outage_of_a_bucket_does_not_count_as_a_hang() -> None:
    """Requests are retried for up to 26 minutes; then a save fails, and training continues."""
    measured = Measurements(
        {kind: [1.0] * 20 for kind in ("save", "local_save", "restore/checkpoint", "restore/local")}
    )
    host = SimpleNamespace(is_elastic=False)
    job: Any = SimpleNamespace(config=Config(), measurements=measured, host=host, out=cloud_storage.place())
    assert [timeouts.limits(job).storage(kind) for kind in ("save", "restore/checkpoint")] == [2400.0, 2400.0]
    assert [timeouts.limits(job).storage(kind) for kind in ("local_save", "restore/local")] == [300.0, 300.0]
    job.out = Path("a-folder")
    assert timeouts.limits(job).storage("save") == 300.0


def test_restores_of_each_tier_are_measured_and_the_first_state_is_not() -> None:
    measured = Measurements()
    for source, seconds in (("init", 1.0), ("local", 2.0), ("checkpoint", 30.0), ("local", 3.0)):
        measured.take_event("restore", seconds, {"source": source, "read": True})
    kept = Measurements(measured.as_json())
    assert kept.as_json() == {"restore/local": [2.0, 3.0], "restore/checkpoint": [30.0]}


def test_the_attempt_after_a_hang_has_the_fixed_limits() -> None:
    after = limits("save", [1.0] * 9)
    for _ in range(100):
        after.measured.record_step(1.0)
    assert after.step() == 180.0
    after.measured.trusts_former = False
    assert after.step() == 300.0
    assert (after.storage("save"), after.join(), after.compilation("train")) == (1800.0, 300.0, 7200.0)
    after.measured.adopt({"chips": [1.0] * 9})
    assert after.chips() == 900.0


@given(st.lists(st.floats(0, 1e4), min_size=100, max_size=250), st.floats(1.0, 1e4))
def test_no_limit_is_below_its_floor_or_what_was_measured(seconds: list[float], floor: float) -> None:
    result = limits("step", seconds, min_hang_seconds=floor).step()
    assert result >= floor
    assert sum(value > result for value in seconds[-200:]) <= 2


def test_a_configured_limit_of_storage_and_programs_stays() -> None:
    config = Config(checkpoint=Checkpoint(hang_seconds=20.0), observe=Observe(compile_hang_seconds=40.0))
    fixed = TimeLimits(config, limits("save", [1.0] * 9).measured)
    assert (fixed.storage("save"), fixed.storage(), fixed.compilation("train")) == (20.0, 20.0, 40.0)
