"""The fencing budget under any failures and restarts of the fencer."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tests.capacity.fencing.nodes import START, Site
from xpk.capacity.fencing.budget import Budget

MOMENTS = st.lists(st.integers(-3600, 3600), max_size=12)


@given(MOMENTS, st.integers(1, 10), st.integers(1, 1800))
def test_the_remaining_budget_excludes_nodes_fenced_in_the_period(moments: list[int], nodes: int, seconds: int) -> None:
    times = [START + timedelta(seconds=item) for item in moments]
    room = Budget(nodes, seconds).room(times, START)
    recent = [item for item in moments if -item < seconds]
    assert room == max(0, nodes - len(recent))
    assert room <= Budget(nodes + 1, seconds).room(times, START), "a larger budget does not reduce the remaining one"
    assert Budget(nodes, seconds).room([*times, START], START) <= room, (
        "one more node does not increase the remaining budget"
    )


def test_a_time_in_the_future_counts_and_one_at_the_edge_does_not() -> None:
    budget = Budget(2, 60.0)
    assert budget.room([START + timedelta(hours=1)], START) == 1
    assert budget.room([START - timedelta(seconds=60)], START) == 2
    assert budget.room([START - timedelta(seconds=59.9)], START) == 1


# Events between two rounds: passing seconds, stopped machines, started machines.
ROUNDS = st.lists(
    st.tuples(st.integers(1, 90), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5))), min_size=1, max_size=15
)


@given(ROUNDS, st.integers(1, 3), st.integers(30, 300))
def test_fenced_nodes_per_period_do_not_exceed_the_budget(
    rounds: list[tuple[int, set[int], set[int]]], nodes: int, seconds: int
) -> None:
    site, fenced = Site(6), list[tuple[datetime, str]]()
    for passed, ending, starting in rounds:
        for item in ending:
            site.end_machine(f"n{item}")
        for item in starting - ending:
            site.start_machine(f"n{item}")
        site.pass_time(passed)
        # A new fencer for each round: all state is in the cluster.
        fenced += [(site.now, node) for action, node in site.actions(site.fencer(Budget(nodes, seconds)))
                   if action == "fence"]  # fmt: skip
    period = timedelta(seconds=seconds)
    for begin, _ in fenced:
        assert len({node for time, node in fenced if begin <= time < begin + period}) <= nodes
