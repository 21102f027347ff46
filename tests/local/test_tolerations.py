"""Taints, tolerations, selectors and affinities of local nodes, as Kubernetes compares them."""

from __future__ import annotations

import pytest

from xpk.api.base import Obj
from xpk.local.objects import is_closed, selects

TAINT = {"key": "xpk.dev/quarantined", "value": "true", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "closed"),
    [
        (None, True),
        ({"key": "xpk.dev/quarantined", "operator": "Equal", "value": "true", "effect": "NoSchedule"}, False),
        ({"key": "xpk.dev/quarantined", "value": "true"}, False),
        ({"key": "xpk.dev/quarantined", "operator": "Exists"}, False),
        ({"operator": "Exists"}, False),
        ({"key": "xpk.dev/quarantined", "operator": "Equal", "value": "false"}, True),
        ({"key": "xpk.dev/quarantined", "operator": "Exists", "effect": "NoExecute"}, True),
        ({"key": "other", "operator": "Exists"}, True),
    ],
)
def test_a_taint_closes_a_node_to_hosts_that_do_not_tolerate_it(toleration: Obj | None, closed: bool) -> None:
    tolerations = [toleration] if toleration else []
    assert is_closed({"spec": {"taints": [TAINT]}}, tolerations) == closed
    assert is_closed({"spec": {"taints": [TAINT], "unschedulable": True}}, tolerations), "a cordon is no taint"
    other = {"key": "k", "effect": "NoExecute"}
    assert is_closed({"spec": {"taints": [TAINT, other]}}, tolerations) == (toleration != {"operator": "Exists"})
    assert not is_closed({"spec": {"taints": [{**other, "effect": "PreferNoSchedule"}]}}, tolerations)


@pytest.mark.parametrize(
    ("terms", "allowed"),
    [
        ([{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]}]}], True),
        ([{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}], False),
        ([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}], False),
        ([{}], False),
        ([{}, {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}], True),
    ],
)
def test_an_affinity_allows_nodes_with_one_of_its_values(terms: list[Obj], allowed: bool) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod: Obj = {"spec": {"nodeSelector": {"kind": "tpu"}, "affinity": {"nodeAffinity": required}}}
    assert selects(pod, {"metadata": {"labels": {"kind": "tpu", "pool": "a"}}}) == allowed
    assert not selects(pod, {"metadata": {"labels": {"kind": "gpu", "pool": "a"}}}), "the selector counts as well"
