"""A queue's priority limit applies to every client of the local control plane."""

from __future__ import annotations

import pytest

from tests.local.cases import jobset, running
from xpk.local.api import LocalApi
from xpk.model import names
from xpk.model.errors import UsageError

REFUSED = "queue 'multislice-queue' accepts priorities up to medium"


def limit(api: LocalApi, priority: str) -> None:
    annotations = {names.MAX_PRIORITY_ANNOTATION: priority}
    api.patch("ClusterQueue", "cluster-queue", {"metadata": {"annotations": annotations}})


def test_a_priority_above_the_limit_is_rejected_by_every_command(api: LocalApi) -> None:
    limit(api, "medium")
    for ask in (api.create, api.apply):
        with pytest.raises(UsageError, match=REFUSED):
            ask(jobset("a", "true", priority="high"))
    assert not api.list("JobSet")
    api.create(jobset("a", "sleep 60", slices=1, hosts=1))
    running(api, "a", 1)
    with pytest.raises(UsageError, match=REFUSED):
        api.patch("JobSet", "a", {"metadata": {"labels": {names.PRIORITY_LABEL: "high"}}})
    (workload,) = api.list("Workload")
    with pytest.raises(UsageError, match=REFUSED):
        api.patch("Workload", workload["metadata"]["name"], {"spec": {"priority": 1000}})


def test_workloads_created_before_the_limit_can_be_changed_and_end(api: LocalApi) -> None:
    api.create(jobset("a", "sleep 60", slices=1, hosts=1, priority="high"))
    running(api, "a", 1)
    limit(api, "low")
    api.patch("JobSet", "a", {"metadata": {"annotations": {"who": "me"}}})
    (workload,) = api.list("Workload")
    api.patch("Workload", workload["metadata"]["name"], {"spec": {"active": False}})
    api.delete("JobSet", "a")
