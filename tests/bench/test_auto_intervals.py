"""Automatic checkpoint intervals in virtual time, next to fixed ones."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from bench.auto_intervals import CASES, Case, Run, compare, sweep
from xpk_shared.goodput.restarts import Failures, Restarts

FREQUENT = next(case for case in CASES if "ten times" in case.name)


def test_fixed_intervals_have_the_goodput_of_the_closed_form() -> None:
    case = FREQUENT
    kind = Failures(per_second=1 / case.mtbf, recovery_seconds=case.recovery, local_survives=False)
    expected = Restarts(failures=(kind,), persistent=case.persistent).goodput(20 * case.step, 1)
    measured = sum(Run(case, 100 * case.mtbf, seed, 20).goodput() for seed in range(5)) / 5
    assert measured == pytest.approx(expected, abs=0.01)


def test_automatic_intervals_come_close_to_the_best_of_a_sweep() -> None:
    assert compare(FREQUENT, runs=2, failures=60)["auto_of_best"] > 0.985


def test_runs_with_the_same_seed_are_the_same() -> None:
    runs = [Run(FREQUENT, 10 * FREQUENT.mtbf, seed=3) for _ in range(2)]
    assert runs[0].goodput() == runs[1].goodput() and runs[0].intervals == runs[1].intervals


def test_a_run_adapts_to_saves_that_become_more_expensive() -> None:
    case = dataclasses.replace(FREQUENT, save_factor=9.0)
    run = Run(case, 60 * case.mtbf, seed=1)
    run.goodput()
    early = [every for time, every, _ in run.intervals if 20 < time / case.mtbf < 30]
    late = [every for time, every, _ in run.intervals if time / case.mtbf > 45]
    assert min(late) > 1.5 * max(early)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_sweep_begins_below_and_ends_above_the_optimum(case: Case) -> None:
    pairs = list(sweep(case))
    every = sorted({pair[0] for pair in pairs})
    assert len(every) > 4 and every[0] >= case.persistent.commit / case.step
    assert all(a < b for a, b in itertools.pairwise(every))
