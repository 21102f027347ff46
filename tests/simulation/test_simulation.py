"""Short lives of simulated clusters and jobs; `make simulate` has long ones."""

from __future__ import annotations

import pytest

from tests.simulation.checkpoints import world as checkpoints
from tests.simulation.lives import live
from tests.simulation.mutants import MUTANTS, Mutant, find, planted, relive
from tests.simulation.properties import Violated
from tests.simulation.world import World

HOURS = 100.0
QUICK = ("one-restart-too-many", "restarts-are-not-limited", "admits-beyond-the-quota", "earlier-attempts-commit")


@pytest.mark.parametrize("number", range(4))
def test_every_property_holds_in_a_clusters_life(number: int) -> None:
    assert live(f"test/{number}", HOURS).passes > 0


def test_a_workload_starts_before_those_that_it_preempted() -> None:
    """The first of a queue does not fit. A smaller one reclaims quota, which its former user would take back."""
    assert live("7/77", 20.0).passes > 0


def test_workloads_of_queues_whose_rules_contradict_do_not_preempt_each_other_in_a_loop() -> None:
    """The first of a queue preempts another of it, a third takes its place, from which the second reclaims quota."""
    assert live("1/3325", 27.0).passes > 0


@pytest.mark.slow
def test_the_longest_of_100_lives_replays_in_seconds() -> None:
    assert live("1/49").passes < 4000, "a pass takes about 1 ms, so this takes longer than 5 s"


def test_a_life_is_determined_by_its_seed() -> None:
    one, again, other = (live(seed, HOURS).digest for seed in ("test/2", "test/2", "test/3"))
    assert one == again != other


@pytest.mark.parametrize("number", range(20))
def test_every_property_holds_for_the_checkpoints_of_a_job(number: int) -> None:
    assert checkpoints.live(f"test/{number}").schedule.steps > 0


def test_the_life_of_a_job_is_determined_by_its_seed() -> None:
    one, again, other = (checkpoints.live(seed) for seed in ("test/2", "test/2", "test/3"))
    assert one.trace == again.trace != other.trace


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.name in QUICK], ids=lambda one: one.name)
def test_a_bug_is_found(mutant: Mutant) -> None:
    seed, what = find(mutant)
    assert seed, "no life shows it"
    with planted(mutant), pytest.raises(Violated) as again:
        relive(mutant, seed)
    assert str(again.value) in what


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_each_bug_changes_the_code_and_is_removed_again(mutant: Mutant) -> None:
    with planted(mutant):
        pass


def test_a_violation_names_its_time() -> None:
    world = World("test", 1, 1)
    with pytest.raises(Violated, match=r"after 0\.000 h: the sky falls"):
        world.properties.require(False, "the sky falls")
