"""Objects that an earlier version has written to a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Xpk
from tests.upgrade import kubernetes_objects
from tests.upgrade.comparison import in_both
from tests.upgrade.kubernetes_objects import PHASES
from tests.upgrade.kubernetes_server import serving
from xpk.testing import FakeApi


@pytest.fixture
def cluster(version: Path, state: Path) -> Iterator[tuple[FakeApi, Any]]:
    """Yield an API server with the objects, and what the earlier version told of them."""
    api, told = kubernetes_objects.load(version)
    with serving(api) as url:
        kubernetes_objects.remember(version, state, url)
        yield api, told


def test_workloads_queues_and_storages_are_read(cluster: tuple[FakeApi, Any], xpk: Xpk) -> None:
    _, told = cluster
    listed = xpk("workload", "list", "--all-namespaces", "-o", "json").data
    assert {item["name"]: item["phase"] for item in listed} == PHASES
    assert in_both(told["list"], listed) == told["list"]
    for name in PHASES:
        for verb in ("status", "describe"):
            done = xpk("workload", verb, name)
            assert (done.code, PHASES[name] in done.out) == (0, True), done.out + done.err
    reads = {
        "cluster": ("cluster", "describe", "prod"),
        "queues": ("queue", "list"),
        "storages": ("storage", "list"),
    }
    for key, words in reads.items():
        assert in_both(told[key], now := xpk(*words, "-o", "json").data) == told[key], now


def test_workloads_are_suspended_resumed_and_deleted(cluster: tuple[FakeApi, Any], xpk: Xpk) -> None:
    api, _ = cluster
    assert xpk("workload", "suspend", "runs").code == 0
    assert xpk("workload", "resume", "paused").code == 0
    active = {item["metadata"]["name"]: item["spec"]["active"] for item in api.list("Workload")}
    assert (active["jobset-runs"], active["jobset-paused"]) == (False, True)
    assert xpk("workload", "delete", "--all", "--yes").code == 0
    assert api.list("JobSet", None) == []


def test_the_cluster_is_adapted_again_used_and_given_back(
    cluster: tuple[FakeApi, Any], xpk: Xpk, tmp_path: Path
) -> None:
    api, _ = cluster
    again = ("cluster", "adapt", "prod", *kubernetes_objects.manifests(tmp_path))
    done = xpk(*again)
    assert done.code == 0, done.err
    assert xpk(*again, "--dry-run", "-o", "json").data["steps"] == []
    done = xpk("workload", "create", "new", "--command", "true", "--storage", "corpus")
    assert done.code == 0, done.err
    assert xpk("workload", "status", "new", "-o", "json").data["mounts"]
    assert xpk("workload", "delete", "--all", "--yes").code == 0
    done = xpk("cluster", "delete", "prod", "--yes")
    assert done.code == 0, done.err
    assert api.list("ClusterQueue", None) == api.list("LocalQueue", None) == []
    assert xpk("cluster", "list", "-o", "json").data == []
