"""Removal of what xpk has created on a cluster of another tool."""

from __future__ import annotations

from pathlib import Path

from tests.capacity.adapted.test_provider import Site, gke
from xpk.capacity.queues.planning import plan_create
from xpk.capacity.queues.request import QueueRequest

POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def test_policies_of_queues_with_a_priority_limit_are_removed_with_them(tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    site.adapt(output_root="gs://b/x")
    request = QueueRequest(name="red", namespaces=("red",), quota=("1",), max_priority="low", create_namespace=True)
    plan_create(site.api, request).carry_out(lambda title: None)
    assert all(site.api.list(kind, None) for kind in POLICIES)
    site.provider.plan_delete("mine", force=False).carry_out(lambda title: None)
    assert not any(site.api.list(kind, None) for kind in (*POLICIES, "ClusterQueue", "LocalQueue"))
