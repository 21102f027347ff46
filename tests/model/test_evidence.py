"""Evidence against nodes, and their scores."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk.model.evidence import Evidence, EvidenceKind, from_text, merged, probability_of_repeats, scores, to_text

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
CRASH = Evidence(
    node="n0", kind=EvidenceKind.SIGNAL, time=NOW.isoformat(), source="lm", number="0", message="SIGSEGV",
    place="s0/h0", hosts=32,
)  # fmt: skip


def crash(number: int, node: str, place: str, *, days: float = 0.0, hosts: int = 32) -> Evidence:
    time = (NOW - timedelta(days=days)).isoformat()
    return replace(CRASH, number=str(number), node=node, place=place, time=time, hosts=hosts)


def suspects(*evidence: Evidence) -> set[str]:
    return {node for node, score in scores(evidence, NOW).items() if score >= 1}


def test_two_failures_of_a_node_within_four_days_make_a_suspect() -> None:
    assert suspects(crash(0, "n0", "s0/h0")) == set()
    assert suspects(crash(0, "n0", "s0/h0", days=4), crash(1, "n0", "s0/h0")) == {"n0"}
    assert suspects(crash(0, "n0", "s0/h0", days=5), crash(1, "n0", "s0/h0")) == set()


def test_a_problem_that_the_node_reports_makes_a_suspect_at_once_and_a_warning_does_not() -> None:
    problem = replace(CRASH, kind=EvidenceKind.PROBLEM, place="", source="node")
    assert suspects(problem) == {"n0"}
    assert suspects(replace(problem, kind=EvidenceKind.WARNING)) == set()


def test_the_weight_halves_every_seven_days() -> None:
    assert scores([crash(0, "n0", "s0/h0", days=14)], NOW) == {"n0": pytest.approx(0.15)}
    assert scores([crash(0, "n0", "s0/h0", days=-1)], NOW) == {"n0": pytest.approx(0.6)}, "clocks may differ"


def test_a_host_of_a_workload_that_fails_on_two_nodes_speaks_against_the_program() -> None:
    first, second = crash(0, "n0", "s0/h0"), crash(1, "n0", "s0/h0")
    moved = crash(2, "n9", "s0/h0")
    assert suspects(first, second, moved) == set()
    other = replace(moved, source="another workload")
    assert suspects(first, second, other) == {"n0"}


def test_evidence_that_no_longer_counts_still_speaks_against_the_program() -> None:
    old, new = crash(0, "n0", "s0/h0"), crash(1, "n9", "s0/h0")
    assert scores([new], NOW)["n9"] == pytest.approx(0.6)
    assert scores([new], NOW, [old]) == {"n9": 0.0}


def test_failures_that_are_spread_over_nodes_speak_against_the_program() -> None:
    spread = [crash(n, f"n{n}", f"s{n}/h0") for n in range(6)]
    assert suspects(*spread, crash(6, "n0", "s0/h0")) == set()


def test_two_bad_hosts_are_both_suspects_and_a_stray_failure_does_not_protect_one() -> None:
    two = [crash(n, f"n{n % 2}", f"s{n % 2}/h0") for n in range(4)]
    assert suspects(*two) == {"n0", "n1"}
    assert suspects(crash(0, "n7", "s7/h0"), crash(1, "n0", "s0/h0"), crash(2, "n0", "s0/h0")) == {"n0"}


@pytest.mark.parametrize("hosts", [2, 3, 5])
@pytest.mark.parametrize("failures", [2, 3, 4, 5])
def test_the_bound_on_repeats_holds_for_all_sequences(hosts: int, failures: int) -> None:
    sequences = list(itertools.product(range(hosts), repeat=failures))
    for nodes in range(1, min(hosts, failures) + 1):
        share = sum(len(set(one)) <= nodes for one in sequences) / len(sequences)
        assert share <= probability_of_repeats(failures, nodes, hosts) + 1e-12


def test_evidence_survives_the_annotation_and_old_evidence_is_dropped() -> None:
    evidence = [crash(0, "n0", "s0/h0"), crash(1, "n0", "s0/h1", days=60)]
    assert from_text("n0", to_text(evidence, NOW)) == evidence[:1]
    assert len(from_text("n0", to_text([crash(n, "n0", "s0/h0") for n in range(100)], NOW))) == 32


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["kind", "time", "hosts", "share"]), inner),
)


@given(st.text() | JSON.map(str) | JSON)
def test_an_annotation_of_others_is_no_evidence(text: object) -> None:
    assert from_text("n0", text) == []


def test_evidence_that_is_read_twice_counts_once() -> None:
    again = replace(CRASH, message="in other words")
    assert merged([CRASH], [again]) == [again]
