"""From `cluster create --provider gke` to `cluster delete` with running workloads, by a user's commands.

GKE is emulated, with a real API server, scheduler, JobSet and Kueue. KWOK emulates the nodes: hosts do not write.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cloud import DELETE, MISSING, QUOTAS, WHERE, Cloud, empty_project

CREATE = ("cluster", "create", "c", *WHERE, "--on-demand", "--tpu-type", "v5litepod-16", "--num-slices", "2")
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with empty_project(tmp_path, QUOTAS) as project:
        yield project


def test_from_create_to_delete(cloud: Cloud) -> None:
    cloud.xpk(*CREATE)
    assert cloud.json("cluster", "list")[0]["state"] == "Ready"
    described = cloud.json("cluster", "describe", "c")
    assert (described["num_slices"], described["hosts_per_slice"], described["chips"]) == (2, 4, 32)
    assert cloud.slices() == {"c-np-0": 4, "c-np-1": 4}

    what = ("--num-slices", "2", "--image", "none", "--command", "sleep inf", "--output-root", "gs://runs/here")
    cloud.xpk("workload", "create", "train", "--cluster", "c", *what)
    hosts = cloud.running("train")
    assert len(hosts) == 8 and {host["phase"] for host in hosts.values()} == {"Running"}
    assert cloud.run("train")["output_dir"] == "gs://runs/here/train"
    cloud.check_each_slice_has_a_pool(hosts)
    (listed,) = cloud.json("workload", "list", "--cluster", "c")
    assert (listed["name"], listed["phase"]) == ("train", "Running")
    assert [item["workload"] for item in cloud.json("cluster", "describe", "c")["slices"]] == ["train", "train"]
    cloud.xpk(*DELETE, code=4)

    cloud.xpk("workload", "delete", "train", "--cluster", "c", "--yes")
    cloud.until(lambda: not cloud.api.list("Pod"))
    assert cloud.json("workload", "list", "--cluster", "c") == []
    cloud.xpk("cluster", "resize", "c", "--num-slices", "3")
    assert cloud.json("cluster", "describe", "c")["num_slices"] == 3 and len(cloud.slices()) == 3
    cloud.xpk("workload", "create", "larger", "--cluster", "c", "--num-slices", "3", *what[2:])
    cloud.running("larger")
    cloud.xpk("workload", "delete", "larger", "--cluster", "c", "--yes")
    cloud.until(lambda: not cloud.api.list("Pod"))

    cloud.xpk(*DELETE)
    cloud.check_nothing_is_left()


@pytest.mark.extended
def test_create_and_delete_complete_after_a_kill_at_every_step(cloud: Cloud) -> None:
    created = until_done(cloud, *CREATE)
    assert len(created) >= 4, "concurrent steps are continued after a restart"
    assert cloud.pools() == {"default-pool": "RUNNING", "c-np-0": "RUNNING", "c-np-1": "RUNNING"}
    assert cloud.json("cluster", "describe", "c")["state"] == "Ready"
    until_done(cloud, "cluster", "resize", "c", "--num-slices", "3")
    until_done(cloud, "cluster", "resize", "c", "--num-slices", "2", "--yes")
    assert cloud.slices() == {"c-np-0": 4, "c-np-1": 4}
    assert cloud.json("cluster", "describe", "c")["state"] == "Ready"
    until_done(cloud, *DELETE)
    cloud.check_nothing_is_left()
    pools = {("CreateNodePool", f"c-np-{number}"): 1 for number in range(3)}
    whole = {("CreateCluster", "c"): 1, ("DeleteCluster", "c"): 1, ("DeleteNodePool", "c-np-2"): 1}
    assert cloud.made() == pools | whole, "nothing was created twice"


def until_done(cloud: Cloud, *arguments: str) -> list[str]:
    """Run a command until there is nothing left to do, killing it after each step; return the steps."""
    steps: list[str] = []
    while step := cloud.killed_after_a_step(*arguments, known=steps):
        steps.append(step)
        assert len(steps) < 20, steps
    return steps
