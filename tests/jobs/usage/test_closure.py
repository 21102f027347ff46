"""The ledger closes: every chip at every moment is productive, lost to one cause, or free."""

from __future__ import annotations

import itertools

import pytest

from tests.jobs.usage.closing import causes, close, totals
from tests.jobs.usage.fleet import EPOCH, MONTH, Fleet
from xpk.jobs.usage.ledger import assemble, read
from xpk.jobs.usage.sums import balance, sums
from xpk.model.usage import Causes, Hold, Piece, State


@pytest.mark.parametrize(
    ("seed", "months"), [pytest.param(0, 100, marks=[pytest.mark.slow, pytest.mark.extended]), (1, 20)]
)
def test_the_ledger_of_many_months_closes_to_the_capacity_within_a_thousandth(seed: int, months: int) -> None:
    closing = close(seed, months)
    fleet, ledger, whole, balanced = closing.fleet, closing.ledger, closing.whole, closing.balanced
    assert ledger.problems == [] and fleet.crashes > months
    assert whole.productive + whole.lost == whole.held == balanced.held
    assert balanced.held + balanced.free == balanced.capacity and balanced.free >= 0
    assert abs(balanced.capacity - fleet.capacity) < fleet.capacity / 1000
    assert abs(balanced.held - fleet.held) < fleet.capacity / 1000
    assert whole.preemptions > months and 0 < whole.resumed < whole.lost
    by_cause = sums(ledger, closing.since, closing.until, lambda hold, cause: (hold.team, cause))
    assert sum(amounts.held for amounts in by_cause.values()) == whole.held
    assert sum(amounts.lost for amounts in by_cause.values()) == whole.lost


def test_parts_of_an_interval_sum_to_the_whole() -> None:
    fleet = Fleet(7)
    fleet.run(EPOCH + 2 * MONTH)
    records = [causes(fleet.rng, uid, *life) for uid, life in fleet.lives.items()]
    since, until = EPOCH, fleet.wall
    ledger = read(fleet.folder, since=since, until=until, more=[*fleet.writer.open_records(until), *records])
    cuts = sorted({since, until, *(fleet.rng.randrange(since, until) for _ in range(40))})
    parts = [balance(ledger, first, last) for first, last in itertools.pairwise(cuts)]
    whole = balance(ledger, since, until)
    assert sum(part.capacity for part in parts) == whole.capacity
    assert sum(part.held for part in parts) == whole.held
    for first, last in itertools.pairwise(cuts):
        amounts = totals(ledger, first, last)
        assert amounts.productive + amounts.lost == balance(ledger, first, last).held


def hold(
    begin: int, end: int, *, state: State = State.RUNNING, reason: str = "", uid: str = "u", chips: int = 4
) -> Hold:
    return Hold(
        uid=uid, workload=uid, namespace="default", queue="red", team="red", user="ann", accelerator_type="v5p-8",
        chips=chips, state=state, created=0, reason=reason, begin=begin, end=end,
    )  # fmt: skip


def test_two_readers_of_the_same_time_do_not_count_it_twice() -> None:
    ledger = assemble([hold(0, 50), hold(0, 80), hold(40, 100), hold(0, 80)])
    assert totals(ledger, 0, 1000).held == 4 * 100
    assert balance(ledger, 0, 1000).held == 4 * 100


def test_a_preemption_is_charged_for_stopping_and_for_starting_again() -> None:
    stay = [
        hold(0, 100),
        hold(100, 110, state=State.STOP, reason="preempted"),
        hold(110, 200, state=State.QUEUED, reason="preempted"),
        hold(200, 220, state=State.START, reason="preempted"),
        hold(220, 300),
    ]
    pieces = (Piece(0, 90, {"steps": 90}), Piece(90, 100, {"lost": 10}), Piece(225, 300, {"restore": 15, "steps": 60}))
    amounts = totals(assemble([*stay, Causes(uid="u", end=300, pieces=pieces)]), 0, 300)
    assert amounts.preemptions == 1 and amounts.queued == 4 * 90
    assert amounts.resumed == 4 * (10 + 10 + 20 + 15)
    assert amounts.productive == 4 * 150 and amounts.lost == 4 * (10 + 10 + 20 + 15 + 5)


def test_a_pause_between_processes_is_charged_to_the_state_of_the_workload() -> None:
    states = [hold(0, 10, state=State.START), hold(10, 20), hold(20, 40, state=State.DOWN)]
    pieces = (Piece(0, 15, {"init": 15}), Piece(15, 30, {"down": 15}), Piece(30, 40, {"hang": 10}))
    ledger = assemble([*states, Causes(uid="u", end=40, pieces=pieces)])
    by_cause = sums(ledger, 0, 40, lambda hold, cause: (cause,))
    assert {key[0]: amounts.held for key, amounts in by_cause.items()} == {"init": 60, "down": 60, "hang": 40}
