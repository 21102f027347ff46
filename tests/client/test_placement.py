"""The Python API of workloads that may run on several clusters."""

from __future__ import annotations

from pathlib import Path

import pytest

import xpk
from xpk.jobs.placement.decision import Done
from xpk.jobs.placement.placements import NotPlaced


def test_a_workload_of_two_clusters_is_placed_until_it_ends(cluster: xpk.Cluster, tmp_path: Path) -> None:
    xpk.create_cluster("other", "v5litepod-8")
    steps: list[str] = []
    workload = xpk.Workload(name="w", command="sleep 1", output_root=str(tmp_path / "runs"))
    run = xpk.submit(workload, ["other", "dev"], move_after=60.0, on_progress=lambda notice: steps.append(notice.text))
    assert run.cluster.name == xpk.locate(run).cluster.name == "other"
    assert steps[-1] == "released on 'other'"
    held = cluster.workload("w")
    assert xpk.locate(held).cluster.name == "other"
    states = {placed.cluster: placed.is_chosen for placed in held.status().placements}
    assert states == {"other": True, "dev": False}
    actions = []
    ended = xpk.place(held, on_pass=lambda done: actions.append(done.action))
    assert ended.cluster.name == "other"
    assert actions[-1] == Done("it succeeded on other")
    assert run.status().phase is xpk.Phase.SUCCEEDED
    assert cluster.workloads() == []
    run.delete()


def test_copies_that_cannot_be_released_are_deleted_again(cluster: xpk.Cluster, tmp_path: Path) -> None:
    xpk.create_cluster("other", "v5litepod-8")
    lease = tmp_path / "runs" / "w" / "placement.json.1"
    lease.mkdir(parents=True)  # where a file should be
    workload = xpk.Workload(name="w", command="true", output_root=str(tmp_path / "runs"), resume=True)
    with pytest.raises(xpk.XpkError, match="cannot read"):
        xpk.submit(workload, ["other", "dev"])
    assert (cluster.workloads(), xpk.Cluster("other").workloads()) == ([], [])
    lease.rmdir()
    assert xpk.submit(workload, ["other", "dev"]).status().placements


def test_a_workload_of_one_cluster_is_not_placed(cluster: xpk.Cluster) -> None:
    run = cluster.submit(xpk.Workload(name="alone", command="true"))
    with pytest.raises(NotPlaced, match="has only one cluster"):
        xpk.place(run)
    assert xpk.locate(run) is run


def test_invalid_fields_and_clusters_are_reported_together(cluster: xpk.Cluster) -> None:
    with pytest.raises(xpk.UsageError) as error:
        xpk.submit(xpk.Workload(name="W!", command="true"), ["dev", "none"])
    text = "\n".join(error.value.problems)
    assert "workload name 'W!'" in text
    assert "cluster 'none' not found" in text
