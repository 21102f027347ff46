"""Order in which several workloads are deleted."""

from __future__ import annotations

from typing import Any

from tests.jobs.objects import ADMITTED, WAITS, jobset, workload
from xpk.jobs.deletion import plan_all, plan_named
from xpk.testing import FakeApi


def named(name: str, uid: str) -> dict[str, Any]:
    """A JobSet that xpk created."""
    made = jobset(labels={"kueue.x-k8s.io/queue-name": "multislice-queue", "app.kubernetes.io/managed-by": "xpk"})
    made["metadata"] |= {"name": name, "uid": uid}
    return {"kind": "JobSet", **made}


def test_queued_workloads_are_deleted_first() -> None:
    # The end of a running workload would admit them.
    waits = {"kind": "Workload", **workload("b", "queued", QuotaReserved=WAITS)}
    api = FakeApi([named("a", "u"), named("b", "queued"), {"kind": "Workload", **ADMITTED}, waits])
    assert [each.name for each in plan_named(api, ["a", "b"], "default", cluster="c")] == ["b", "a"]
    assert [each.name for each in plan_all(api, "default")] == ["b", "a"]
