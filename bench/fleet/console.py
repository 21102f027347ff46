"""Requests of the console, and the time from a change to its event, for few and for 12,736 hosts."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.console.browser import Listener
from tests.console.conftest import CLUSTER, Console, serving
from tests.console.hosts import CountedApi, api_of
from tests.jobs.objects import ROOTS
from tests.jobs.report.runs import RunWriter
from tests.waiting import until
from xpk.console.cluster_reader import ClusterReader
from xpk.console.run_reader import RunKey, RunReader

SIZES = ((2, 1), (199, 64))  # slices, and hosts of each
_CHANGES = 15
_FIRST_STEPS = 20
_RUN = RunKey(cluster=CLUSTER, namespace="default", name="w")


def measure() -> dict[str, Any]:
    """Return requests and seconds by the number of hosts."""
    return {f"{slices * hosts}": _of_size(slices, hosts) for slices, hosts in SIZES}


def _of_size(slices: int, hosts: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        api = api_of(slices, hosts, output=folder)
        run = RunWriter(Path(folder), slices=1, hosts=2, now=time.time() - 60)
        run.train(0, _FIRST_STEPS)
        run.write()
        requests = _requests(api)
        with serving([ClusterReader(CLUSTER, lambda: api, ROOTS)]) as console:
            return {**requests, **_latencies(console, api, run)}


def _requests(api: CountedApi) -> dict[str, Any]:
    """Return the numbers of requests of a reading of the overview and of a run, and the seconds of the first."""
    reader = ClusterReader(CLUSTER, lambda: api, ROOTS)
    reader.read()
    before, began = api.requests().total(), time.monotonic()
    reader.read()
    seconds, middle = time.monotonic() - began, api.requests().total()
    RunReader(reader).read(_RUN)
    return {
        "requests_overview": middle - before,
        "requests_run": api.requests().total() - middle,
        "reading_seconds": round(seconds, 4),
    }


def _latencies(console: Console, api: CountedApi, run: RunWriter) -> dict[str, Any]:
    """Return the seconds from a change to its event, for a phase, a step in the list and a curve."""
    steps = iter(range(_FIRST_STEPS + 1, 10_000))

    def suspend(is_suspended: bool) -> tuple[str, str]:
        api.patch("Workload", "jobset-w", {"spec": {"active": not is_suspended}})
        return "runs", "Suspended" if is_suspended else "Running"

    def make_step(part: str, text: str) -> tuple[str, str]:
        run.now = time.time()
        run.steps(step := next(steps), step)
        run.write()
        return part, text.format(step)

    overview, close = console.open()
    phases = _seconds(overview, lambda number: suspend(number % 2 == 0))
    suspend(False)
    in_list = _seconds(overview, lambda _: make_step("runs", "<span>{}"))
    close()
    page, close = console.open(f"run={_RUN}")
    curves = _seconds(page, lambda _: make_step("loss", "to step {} "))
    close()
    return {"phase_seconds": phases, "step_seconds": in_list, "curve_seconds": curves}


def _seconds(listener: Listener, change: Callable[[int], tuple[str, str]]) -> dict[str, float]:
    """Make changes at random times; return median and maximum of the seconds until the event with a text."""
    until(lambda: listener.parts)
    random, measured = Random(1), []
    for number in range(_CHANGES):
        time.sleep(random.uniform(1.0, 2.0))  # anywhere between two readings
        began = time.monotonic()
        part, text = change(number)
        until(lambda part=part, text=text: text in listener.parts.get(part, ""), every=0.002)  # type: ignore[misc]
        measured.append(time.monotonic() - began)
    return {"median": round(statistics.median(measured), 3), "max": round(max(measured), 3)}
