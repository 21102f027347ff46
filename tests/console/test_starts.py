"""Estimated starts in the queues of `xpk serve` and `xpk top`."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import cast

from tests.console.browser import shows
from tests.console.conftest import CLUSTER, Console, submit
from tests.console.conftest import console as console
from tests.console.conftest import serve as serve
from tests.console.conftest import state as state
from tests.jobs.simulation.queues import ROOTS, Stored, cluster, cluster_queue, queued_status, workload
from tests.waiting import until
from xpk import Cluster, Workload
from xpk.api.base import ObjectApi, Objs
from xpk.capacity.queues.reading import QueueInfo
from xpk.console.cluster_reader import ClusterView, RunLine
from xpk.console.feed import Readings, Selection
from xpk.console.starts import StartEstimator
from xpk.console.views import Views
from xpk.model.forecast import StartEstimate
from xpk.model.status import Phase, WorkloadStatus


def estimator(api: Stored, clock: list[float]) -> StartEstimator:
    """Return an estimator whose time is the newest of a list."""
    return StartEstimator(lambda: cast(ObjectApi, api), ROOTS, lambda: clock[-1])


def test_queues_and_the_page_of_a_queued_run_show_when_it_starts(console: Console) -> None:
    submit()
    Cluster(CLUSTER).submit(Workload(name="earlier", command="true", num_slices=2))
    Cluster(CLUSTER).submit(Workload(name="later", command="true", num_slices=2))
    overview, _ = console.open()
    order = r"1\. <a [^>]*>earlier</a> <time[^>]*>.*2\. <a [^>]*>later</a> <time"
    until(lambda: re.search(order, overview.parts.get("queues", ""), re.S))
    page, _ = console.open(f"run={CLUSTER}/default/earlier")
    until(shows(page, "head", "starts when default/lm ends"))
    assert re.search(r"Estimated start</dt><dd><time class=.until.", page.parts["head"])


def test_starts_are_simulated_at_most_every_few_seconds_and_only_while_workloads_wait() -> None:
    api, clock = Stored(cluster(workload("next", 1))), [0.0]
    starts = estimator(api, clock)
    assert starts.with_starts([queued_status(phase=Phase.RUNNING)], waits=True)[0].start is None and not api.calls
    for time in (0.0, 1.0, 4.0):
        clock.append(time)
        (waiting,) = starts.with_starts([queued_status()], waits=True)
        assert waiting.start and waiting.start.expected and api.calls["Workload"] == 1
    clock.append(5.0)
    starts.with_starts([queued_status()], waits=True)
    assert api.calls["Workload"] == 2


def test_a_slow_simulation_delays_no_reading() -> None:
    answer = threading.Event()

    class Slow(Stored):
        """An API whose answers wait for the test."""

        def list(self, kind: str, namespace: str | None) -> Objs:
            """Wait, then answer."""
            assert answer.wait(30)
            return super().list(kind, namespace)

    api = Slow(cluster(workload("next", 1)))
    starts = estimator(api, [0.0])
    for _ in range(3):
        assert starts.with_starts([queued_status()])[0].start is None
    answer.set()
    until(lambda: starts.with_starts([queued_status()])[0].start is not None)
    assert api.calls["Workload"] == 1


def test_objects_that_break_the_simulation_are_reported() -> None:
    class Odd(Stored):
        """An API whose answers break its reader."""

        def list(self, kind: str, namespace: str | None) -> Objs:
            """Raise."""
            raise KeyError(kind)

    (waiting,) = estimator(Odd(cluster()), [0.0]).with_starts([queued_status()], waits=True)
    assert waiting.start and waiting.start.reason.startswith("internal error: KeyError")


def shown(*waiting: WorkloadStatus) -> str:
    """Return the table of queues as HTML."""
    queue = QueueInfo(
        name="multislice-queue", cluster_queue="cluster-queue", namespaces=(), shares=(), pending=len(waiting),
        admitted=0, cohort="", reclaim="Never", maker="xpk", created="",
    )  # fmt: skip
    view = ClusterView(name=CLUSTER, queues=(queue,), runs=tuple(RunLine(status=one) for one in waiting))
    return Views((CLUSTER,))(Selection(), Readings({CLUSTER: view}, {}))["queues"]


def test_a_queue_that_cannot_be_simulated_is_named_once() -> None:
    held = cluster_queue("cluster-queue", 2, stopPolicy="Hold")
    api = Stored(replace(cluster(workload("next", 1), workload("big", 1)), cluster_queues=[held]))
    waiting = estimator(api, [0.0]).with_starts([queued_status(), queued_status(name="big", position=2)], waits=True)
    html = shown(*waiting)
    reason = "queue &#39;cluster-queue&#39; is not simulated: it is stopped (Hold)"
    assert html.count(f"No estimated start: {reason}") == 1 and "1. " in html and "2. " in html


def test_a_workload_that_never_starts_is_named_beside_those_that_do() -> None:
    time = "2026-11-27T04:00:00Z"
    start = StartEstimate(earliest=time, expected=time, latest=None, rests_on=(), preempts=())
    never = replace(start, earliest=None, expected=None, reason="needs 99 chips")
    html = shown(queued_status(start=start), queued_status(name="big", position=2, start=never))
    assert "No estimated start: big: needs 99 chips" in html and html.count("No estimated start") == 1
    assert " to never)" in html
