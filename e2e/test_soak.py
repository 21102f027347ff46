"""Random faults in one run, one after another: it always continues, with the losses of an undisturbed run."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.harness import Lab, own_cluster
from e2e.soak.faults import ELASTIC_KINDS, HOSTS_PER_SLICE, KINDS, Fault, plan
from e2e.soak.injection import INTERVAL, TPU_TYPE, Outcome, Soak, reference_losses
from e2e.soak.report import differing_steps, line
from e2e.soak.resources import growth
from e2e.soak.slice_progress import SliceProgress

SLICES, FAULTS = 2, 50
SEED = 385  # includes every kind, and few waits for a frozen process
SECONDS = 600.0
MIN_SLICES = 1  # of elastic slices
FIRST, FEW = 40, 4  # the first slice's supervisor, a slice that joins, two supervisors, and a host that is asked to end


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Return a cluster of two slices with two hosts each."""
    with own_cluster(tmp_path, "soak", TPU_TYPE, SLICES) as made:
        yield made


@pytest.mark.extended  # takes ten minutes or longer
@pytest.mark.timeout(1800)
def test_a_run_survives_random_faults(lab: Lab, tmp_path: Path) -> None:
    soak = Soak(lab, SLICES, max_restarts=10 * FAULTS, artifacts=tmp_path / "artifacts")
    soak.start()
    for fault in plan(SEED, SLICES * HOSTS_PER_SLICE, 1, FAULTS):
        check(soak, fault)
    described = soak.run.describe()
    assert described["restarts"] >= len(soak.progress.starts[0]) - 1, "every attempt except the first is a restart"
    read = {event["read"] for event in soak.run.events("restore") if event["slice"] == 1}
    assert read == {False}, "one slice reads a checkpoint and sends it to the other"
    soak.stop()
    finished = soak.progress.steps
    assert differing_steps(finished, reference_losses(lab, "calm", SLICES, finished[-1]["step"], SECONDS)) == []
    assert list(soak.resources.grown()) == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("first", "faults"), [(FIRST, FEW), pytest.param(1, FAULTS, marks=pytest.mark.extended)])
def test_elastic_slices_survive_random_faults(lab: Lab, tmp_path: Path, first: int, faults: int) -> None:
    soak = Soak(lab, SLICES, 10 * FAULTS, tmp_path / "artifacts", MIN_SLICES)
    soak.start()
    for fault in plan(SEED, SLICES * HOSTS_PER_SLICE, first, faults, ELASTIC_KINDS):
        outcome = soak.inject(fault)
        print(line(outcome), file=sys.stderr, flush=True)
        assert outcome.survived, outcome.reason
        assert outcome.undone_too_much(SLICES) == ""
    soak.stop()
    finished = soak.progress.steps
    last = max(step["step"] for step in finished)
    reference = reference_losses(lab, "calm", SLICES, last, SECONDS, min_slices=MIN_SLICES)
    assert differing_steps(finished, reference) == []
    assert list(soak.resources.grown()) == []


def check(soak: Soak, fault: Fault) -> None:
    """Inject a fault and check its consequences."""
    is_preemption = fault.kind == "terminate-host"
    counted = soak.run.describe()["restarts_counted"] if is_preemption else 0
    outcome = soak.inject(fault)
    print(line(outcome), file=sys.stderr, flush=True)
    assert outcome.survived, outcome.reason
    if not outcome.missed:
        assert outcome.in_place == KINDS[fault.kind].pods_stay
    assert outcome.lost_steps <= most_lost_steps(outcome)
    if is_preemption:
        assert soak.run.describe()["restarts_counted"] == counted


def most_lost_steps(outcome: Outcome) -> int:
    """Return the maximum of lost steps: those since a checkpoint, or since the previous one if a save was running."""
    return 0 if outcome.fault.kind in ("terminate-host", "terminate-trainer") else 2 * INTERVAL


def test_a_fault_is_determined_by_its_seed_and_number() -> None:
    faults = list(plan(SEED, SLICES * HOSTS_PER_SLICE, 1, FAULTS))
    assert {fault.kind for fault in faults} == set(KINDS)
    assert list(plan(SEED, SLICES * HOSTS_PER_SLICE, 31, 3)) == faults[30:33]
    assert list(plan(SEED + 1, SLICES * HOSTS_PER_SLICE, 1, FAULTS)) != faults


def test_steps_that_an_earlier_fault_has_cost_are_not_counted_again(tmp_path: Path) -> None:
    progress = SliceProgress(tmp_path, SLICES, HOSTS_PER_SLICE)
    progress.steps = [{"time": float(time), "step": step} for time, step in enumerate([1, 2, 3, 4, 2, 3, 4, 5, 5, 6])]
    assert [progress.undone(0, time) for time in (0.0, 3.5, 4.5, 7.5, 8.5)] == [4, 4, 1, 1, 0]


@pytest.mark.parametrize(("slope", "expected"), [(0.0, 0.0), (3.0, 90.0)])
def test_growth_is_detected_despite_noise_and_outliers(slope: float, expected: float) -> None:
    rng = random.Random(1)
    values = [1000 + slope * at + rng.uniform(-5, 5) + (500 if at % 10 == 3 else 0) for at in range(31)]
    assert growth(values) == pytest.approx(expected, abs=8)
