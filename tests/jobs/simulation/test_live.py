"""Estimated starts of workloads on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from tests.jobs.simulation.queues import ROOTS, Stored, cluster, cluster_queue, queued_status, workload
from xpk.api.base import Obj, ObjectApi
from xpk.jobs.simulation.live import all_starts, with_start
from xpk.jobs.simulation.scenario import Objects
from xpk.jobs.status.fields import when
from xpk.model.forecast import StartEstimate
from xpk.model.status import Phase, WorkloadStatus


def started(objects: Objects, *denied: str, **fields: Any) -> WorkloadStatus:
    return with_start(cast(ObjectApi, Stored(objects, denied)), queued_status(**fields), ROOTS)


def test_only_a_workload_that_waits_has_an_estimate() -> None:
    objects = cluster(workload("next", 1))
    start = started(objects).start
    assert start and start.expected and not start.reason
    assert started(objects, phase=Phase.RUNNING).start is None
    assert started(objects, position=None).start is None
    assert started(objects, "JobSet", "ResourceFlavor", "Cohort").start is not None


def test_users_who_may_not_list_all_workloads_see_no_estimate() -> None:
    assert started(cluster(workload("next", 1)), "Workload").start is None


def test_objects_that_cannot_be_read_give_no_estimate() -> None:
    broken: Obj = {"metadata": {"name": "odd"}, "spec": {"resourceGroups": [{"flavors": [{"resources": [{}]}]}]}}
    assert started(cluster(workload("next", 1), more=(broken,))).start is None


def test_a_queue_that_is_not_simulated_and_a_long_queue_are_named() -> None:
    objects = cluster(workload("next", 1), more=(cluster_queue("odd", 1, stopPolicy="Hold"),))
    start = started(objects).start
    assert start and start.reason == "queue 'cluster-queue' is not simulated: it shares a cohort with 'odd'"
    many = cluster(*(workload(f"w{number}", 1) for number in range(101)), workload("next", 1))
    start = started(many).start
    limit = "more than the 100 whose starts are estimated here; `xpk queue simulate` estimates all"
    assert start and start.reason == f"102 workloads are queued, {limit}"


def starts(objects: Objects, *denied: str) -> Callable[[str, str], StartEstimate | None]:
    """Return the estimates of all queued workloads, by name and ClusterQueue."""
    made = all_starts(cast(ObjectApi, Stored(objects, denied)), ROOTS)
    return lambda name, place: made.of(queued_status(name=name, cluster_queue=place))


def test_all_queued_workloads_are_estimated_from_one_scenario() -> None:
    objects = cluster(workload("runs", 2, admitted=-60.0), workload("next", 1), workload("big", 2, created=-60.0))
    of = starts(objects)
    for name in ("next", "big"):
        alone = started(objects, name=name).start
        estimate = of(name, "cluster-queue")
        assert estimate and alone and alone.expected
        same = replace(estimate, earliest=alone.earliest, expected=alone.expected, latest=alone.latest)
        assert same == alone and abs(when(estimate.expected or "") - when(alone.expected)) <= timedelta(seconds=5)
    assert of("later", "cluster-queue") is None


def test_what_cannot_be_estimated_for_all_is_named() -> None:
    alone = cluster_queue("odd", 1, cohort="other", stopPolicy="Hold")
    of = starts(cluster(workload("next", 1), workload("held", 1, queue="odd"), more=(alone,)))
    refused, fine = of("held", "odd"), of("next", "cluster-queue")
    assert refused and refused.reason == "queue 'odd' is not simulated: it is stopped (Hold)"
    assert fine and fine.expected
    denied = starts(cluster(workload("next", 1)), "Workload")("next", "cluster-queue")
    assert denied and denied.reason == "the queues are not simulated: permission denied: Workload"
    many = starts(cluster(*(workload(f"w{number}", 1) for number in range(101))))("w3", "cluster-queue")
    limit = "more than the 100 whose starts are estimated here; `xpk queue simulate` estimates all"
    assert many and many.reason == f"101 workloads are queued, {limit}"
