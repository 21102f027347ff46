"""The verdict: which slices are quarantined."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from xpk.capacity.quarantine.verdict import Budget, SliceState, judge
from xpk.model.evidence import Evidence, EvidenceKind

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def slices(number: int, *, idle: int) -> list[SliceState]:
    """Return slices of two nodes, the last ones idle."""
    return [
        SliceState(name=f"np-{n}", accelerator_type="v5e", nodes=(f"n{n}-0", f"n{n}-1"), is_idle=n >= number - idle)
        for n in range(number)
    ]


def problem(node: str, kind: EvidenceKind = EvidenceKind.PROBLEM) -> Evidence:
    return Evidence(node=node, kind=kind, time=NOW.isoformat(), source="node", number="1", message="KernelDeadlock")


def actions(states: list[SliceState], *nodes: str, percent: float = 5.0) -> list[tuple[str, str]]:
    verdicts = judge(states, [problem(node) for node in nodes], NOW, Budget(percent))
    return [(verdict.action, verdict.slice) for verdict in verdicts]


def test_the_slice_of_a_suspect_is_quarantined_with_the_evidence_as_reason() -> None:
    (verdict,) = judge(slices(3, idle=1), [problem("n1-1")], NOW)
    assert (verdict.action, verdict.slice, verdict.node) == ("quarantine", "np-1", "n1-1")
    assert (verdict.nodes, verdict.reason) == (("n1-0", "n1-1"), "1 problem; KernelDeadlock")
    assert judge(slices(3, idle=1), [problem("n1-1", EvidenceKind.WARNING)], NOW) == []


@pytest.mark.parametrize(("number", "most"), [(1, 1), (19, 1), (20, 1), (40, 2), (199, 9)])
def test_at_most_five_percent_of_slices_are_quarantined_but_always_one(number: int, most: int) -> None:
    assert Budget().slices(number) == most


def test_suspects_beyond_the_budget_are_deferred_and_quarantined_slices_count() -> None:
    states = slices(40, idle=10)
    assert actions(states, "n0-0", "n1-0", "n2-0") == [
        ("quarantine", "np-0"),
        ("quarantine", "np-1"),
        ("defer", "np-2"),
    ]
    states[0] = replace(states[0], is_quarantined=True)
    assert actions(states, "n1-0", "n2-0") == [("quarantine", "np-1"), ("defer", "np-2")]
    assert actions(states, "n0-0") == [], "it is in quarantine already"


def test_a_slice_is_quarantined_only_while_another_one_of_its_type_is_free() -> None:
    assert actions(slices(3, idle=0), "n0-0") == [("defer", "np-0")]
    assert actions(slices(3, idle=1), "n2-0") == [("defer", "np-2")], "the last spare slice"
    assert actions(slices(3, idle=2), "n2-0") == [("quarantine", "np-2")]
    others = [*slices(2, idle=0), *(replace(one, name="other", accelerator_type="v6e") for one in slices(1, idle=1))]
    assert actions(others, "n1-0") == [("defer", "np-1")]


def test_two_suspects_do_not_share_the_last_free_slice() -> None:
    assert actions(slices(4, idle=1), "n0-0", "n1-0", percent=100) == [("quarantine", "np-0"), ("defer", "np-1")]


def test_the_highest_score_comes_first() -> None:
    evidence = [problem("n0-0"), problem("n1-0"), replace(problem("n1-0"), number="2")]
    verdicts = judge(slices(5, idle=2), evidence, NOW)
    assert [(verdict.action, verdict.slice) for verdict in verdicts] == [("quarantine", "np-1"), ("defer", "np-0")]
