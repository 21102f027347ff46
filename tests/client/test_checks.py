"""Preflight checks that are interrupted."""

from __future__ import annotations

import pytest

import xpk
from xpk.client import Cluster, WorkloadHandle
from xpk.jobs.create.workload import Workload


class Interrupted(Cluster):
    """A cluster whose user presses Ctrl-C once the workload exists, and before its handle does."""

    def submit(self, workload: Workload, **more: object) -> WorkloadHandle:
        super().submit(workload, **more)  # type: ignore[arg-type]
        raise KeyboardInterrupt


@pytest.mark.parametrize("keep", [False, True])
def test_checks_that_are_interrupted_while_they_are_created_leave_no_workload(cluster: Cluster, keep: bool) -> None:
    with pytest.raises(KeyboardInterrupt):
        xpk.check_hosts(Interrupted(cluster.name), keep=keep)
    assert len(cluster.workloads()) == keep
