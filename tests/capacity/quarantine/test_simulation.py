"""The goals of quarantine by evidence, on simulated faults. docs/host-health.md has the figures."""

from __future__ import annotations

import functools

from tests.capacity.quarantine import simulation
from tests.capacity.quarantine.faults import OF_HOSTS
from tests.capacity.quarantine.simulation import BEGIN, END, PAGE, WEEKS, Outcome, Weeks


@functools.cache
def figures() -> dict[str, Outcome]:
    return simulation.figures()


@functools.cache
def weeks() -> Weeks:
    return simulation.live_for_weeks(0, WEEKS)


def test_bad_hosts_are_out_after_two_failures_in_95_percent() -> None:
    assert len(OF_HOSTS) >= 20 and simulation.SEEDS >= 20
    assert simulation.share_out_in_time(figures()) >= 0.95


def test_every_kind_of_bad_host_is_out_after_two_failures_in_nine_of_ten_runs() -> None:
    attempts = {fault.name: figures()[fault.name].attempts_until_out for fault in OF_HOSTS}
    in_time = {name: [number is not None and number <= 2 for number in numbers] for name, numbers in attempts.items()}
    assert [name for name, results in in_time.items() if sum(results) < 0.9 * len(results)] == []


def test_innocent_hosts_are_blamed_in_at_most_one_of_a_thousand_restarts() -> None:
    assert simulation.share_of_innocents(figures()) <= 0.001


def test_a_thousand_weeks_never_exceed_the_budget_nor_take_the_last_free_slice() -> None:
    result = weeks()
    assert result.quarantines > 100 and result.deferrals > 100, "the limits are reached"
    assert (result.beyond_budget, result.last_free) == (0, 0)


def test_the_page_has_the_figures() -> None:
    text = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    hint = "run `python -m tests.capacity.quarantine.simulation --write`"
    assert text.strip() == simulation.page(figures(), weeks()).strip(), hint
