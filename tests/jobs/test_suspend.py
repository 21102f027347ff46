"""Suspending finds Kueue's Workload, or explains its absence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.objects import ADMITTED, Obj, jobset, workload
from xpk.api.base import Objs, Selector
from xpk.jobs import lifecycle
from xpk.model.errors import ConflictError, NotFoundError
from xpk.testing import FakeApi


def kueue(found: Obj) -> Obj:
    return found | {"kind": "Workload"}


def suspend(api: FakeApi, **limits: Any) -> None:
    lifecycle.set_active(api, "w", "default", active=False, **limits)


class Slow(FakeApi):
    """Kueue creates its object a moment after the workload."""

    looks = 0

    def list(self, kind: str, namespace: str | None = "default", selector: Selector | None = None, **more: Any) -> Objs:
        """List Kueue's workloads from the third call on."""
        self.looks += kind == "Workload"
        return [] if kind == "Workload" and self.looks < 3 else super().list(kind, namespace, selector)


def test_suspend_waits_for_a_new_workload() -> None:
    api = Slow([jobset() | {"kind": "JobSet"}, kueue(ADMITTED)])
    suspend(api)
    assert api.get("Workload", "jobset-w")["spec"]["active"] is False


def test_a_workload_that_is_never_queued_is_reported() -> None:
    with pytest.raises(NotFoundError, match="is not queued: Kueue has not picked it up") as error:
        suspend(FakeApi([jobset() | {"kind": "JobSet"}]), pickup_seconds=0.3)
    assert "kueue-system" in error.value.hint


def test_a_workload_without_a_queue_cannot_be_suspended() -> None:
    api = FakeApi([jobset(labels={}) | {"kind": "JobSet"}])
    with pytest.raises(ConflictError, match="'w' has no queue") as error:
        suspend(api)
    assert """kubectl patch jobset w -n default --type merge -p '{"spec":{"suspend":true}}'""" in error.value.hint


def test_only_the_named_workload_is_suspended() -> None:
    """A Job or an earlier JobSet may have had the name."""
    other = kueue(workload("w", "another-uid"))
    other["metadata"]["name"] = "job-w"
    api = FakeApi([jobset() | {"kind": "JobSet"}, other, kueue(ADMITTED)])
    suspend(api)
    assert api.get("Workload", "jobset-w")["spec"]["active"] is False
    assert "active" not in api.get("Workload", "job-w")["spec"]


def test_the_hint_of_an_ended_workload_names_its_cluster() -> None:
    ended = jobset(conditions=[{"type": "Completed", "status": "True"}]) | {"kind": "JobSet"}
    with pytest.raises(ConflictError, match="has ended") as error:
        lifecycle.set_active(FakeApi([ended]), "w", "default", active=True, where=" --cluster c --namespace n")
    assert error.value.hint == "`xpk workload status w --cluster c --namespace n`"
