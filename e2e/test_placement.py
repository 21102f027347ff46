"""Slices of 64 hosts on whole node pools, with real scheduler, JobSet and Kueue, also after a restart.

KWOK emulates the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.at_scale.cluster import SHAPE, ScaleCluster, missing_programs, scale_cluster
from bench.at_scale.lifecycle import fail_host, remove
from bench.at_scale.nodes import pool_of
from bench.at_scale.observation import Marks, watching
from bench.at_scale.workload import spec_of, submit_ours
from tests.waiting import until
from xpk.render import render_workload

SECONDS = 180.0
pytestmark = pytest.mark.skipif(bool(missing_programs()), reason=missing_programs())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScaleCluster]:
    """Return a cluster of three slices."""
    with scale_cluster(tmp_path_factory.mktemp("cluster"), 3) as created:
        created.grow(3)
        yield created


def pools(marks: Marks, num_slices: int) -> set[str]:
    """Wait until a workload runs; return the node pools of its slices."""
    until(lambda: len(marks.running) == num_slices * SHAPE.hosts, seconds=SECONDS, every=0.5)
    assert marks.split_slices() == 0
    return {pool_of(marks.nodes[pod]) for pod in marks.running}


def cordon(cluster: ScaleCluster, pool: str, is_on: bool) -> None:
    """Cordon the nodes of a pool, or allow hosts on them again."""
    for node in cluster.api.list("Node"):
        if pool_of(node["metadata"]["name"]) == pool:
            cluster.api.patch("Node", node["metadata"]["name"], {"spec": {"unschedulable": is_on}})


def test_a_slice_moves_as_a_whole_and_leaves_other_workloads_alone(cluster: ScaleCluster) -> None:
    attempt = {"jobset.sigs.k8s.io/restart-attempt": "1"}
    with watching(cluster.server, "one") as one, watching(cluster.server, "two") as two:
        submit_ours(cluster, "one", 1)
        submit_ours(cluster, "two", 1)
        (first,), (second,) = pools(one, 1), pools(two, 1)
        assert first != second
        cordon(cluster, first, True)
        with watching(cluster.server, "one", attempt) as again:
            fail_host(cluster, one, "one-slice-job-0-63-")
            (spare,) = pools(again, 1)
        assert spare not in (first, second)
        assert pools(two, 1) == {second}
    cordon(cluster, first, False)
    for name in ("one", "two"):
        remove(cluster, name, SECONDS)


def test_hosts_without_exclusive_placement_start(cluster: ScaleCluster) -> None:
    jobset = render_workload(spec_of(cluster, "plain", 3))[-1]
    del jobset["metadata"]["annotations"]["alpha.jobset.sigs.k8s.io/exclusive-topology"]
    with watching(cluster.server, "plain") as marks:
        cluster.api.create(jobset)
        until(lambda: len(marks.running) == 3 * SHAPE.hosts, seconds=SECONDS, every=0.5)
    remove(cluster, "plain", SECONDS)
