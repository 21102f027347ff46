from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.console.browser import shows
from tests.console.conftest import CLUSTER, Console, submit
from tests.console.conftest import console as console
from tests.console.conftest import serve as serve
from tests.console.conftest import state as state
from tests.console.hosts import CountedApi, api_of
from tests.jobs.objects import ROOTS
from tests.jobs.report.runs import RunWriter
from tests.waiting import until
from xpk import Cluster, Workload
from xpk.api.base import Obj
from xpk.console.cluster_reader import ClusterReader
from xpk.model.errors import UnavailableError
from xpk.testing import FakeApi

RUN = f"run={CLUSTER}/default/lm"


def train(folder: Path, steps: int) -> RunWriter:
    """Write the output of a trainer up to a step."""
    run = RunWriter(folder, slices=1, hosts=1, now=time.time() - 60)
    run.train(0, steps)
    run.write()
    return run


def test_a_new_step_and_a_new_phase_are_shown_at_once(console: Console) -> None:
    run = train(submit(), 20)
    listener, _ = console.open()
    until(shows(listener, "runs", "<span>20"))
    run.steps(21, 21)
    run.write()
    until(shows(listener, "runs", "<span>21"), seconds=5)  # half a second on an idle machine
    Cluster(CLUSTER).workload("lm").suspend()
    until(shows(listener, "runs", "Suspended"), seconds=5)


def test_the_page_of_a_run_has_curves_goodput_hosts_restarts_and_log(console: Console) -> None:
    run = train(submit(), 30)
    run.kill((0, 0))
    run.train(20, 40)
    run.write()
    listener, _ = console.open(RUN)
    until(shows(listener, "head", "Running"))
    until(shows(listener, "loss", "curve lost"))
    assert "Productive steps" in listener.parts["goodput"] and "slice 0 host 0" in listener.parts["hosts"]
    assert "step 20" in listener.parts["restarts"] and "Step time" in listener.parts["signals"]
    assert "s0/h0" in listener.parts["log"] and "runs" not in listener.parts


def test_a_workload_of_the_same_name_does_not_show_the_curves_of_the_former_one(console: Console) -> None:
    train(submit(), 30)
    listener, _ = console.open(RUN)
    until(shows(listener, "loss", "curve steps"))
    until(shows(listener, "goodput", "Productive steps"))
    Cluster(CLUSTER).workload("lm").delete(with_output=True)
    submit()
    until(lambda: not listener.parts["loss"])
    assert not listener.parts["goodput"] and "Running" in listener.parts["head"]


def test_runs_are_compared_with_curves_over_each_other(console: Console) -> None:
    train(submit(), 30)
    train(submit("other"), 10)
    listener, _ = console.open(f"{RUN}&run={CLUSTER}/default/other&run={CLUSTER}/default/none")
    until(shows(listener, "comparison", "curve run-1"))
    until(shows(listener, "comparison", "workload &#39;none&#39; not found"))
    assert "curve run-0" in listener.parts["comparison"]


def test_text_of_runs_is_escaped(console: Console) -> None:
    cluster = Cluster(CLUSTER)
    cluster.submit(Workload(name="lm", command="printf '<img src=x>\\033[31m\\n'; sleep 600"))
    listener, _ = console.open(RUN)
    until(shows(listener, "log", "&lt;img src=x&gt;"))
    assert "<img" not in listener.parts["log"] and "\x1b" not in listener.parts["log"]


def measure(serve: Callable[[list[ClusterReader]], Console], api: CountedApi) -> tuple[Counter[str], int]:
    """Return the requests of one reading with a run's page open, and the bytes of the first events."""
    readers = [ClusterReader(CLUSTER, lambda: api, ROOTS, pause_seconds=3600.0)]
    console = serve(readers)
    listener, _ = console.open(f"run={CLUSTER}/default/w")
    until(shows(listener, "head", "Running"))
    before = api.requests()
    overview, _ = console.open()  # wakes the reader, which reads both views once
    until(shows(overview, "runs", "Running"))
    return api.requests() - before, sum(listener.sizes) + sum(overview.sizes)


def test_requests_and_events_do_not_grow_with_the_number_of_hosts(
    serve: Callable[[list[ClusterReader]], Console],
) -> None:
    few, small = measure(serve, api_of(2, 1))
    many, large = measure(serve, api_of(199, 64))
    assert many == few and many.total() <= 24, many
    assert large < small + 1000 < 20_000


def test_requests_do_not_grow_with_the_number_of_browsers_and_end_with_the_last(
    serve: Callable[[list[ClusterReader]], Console],
) -> None:
    api = api_of(2, 1)
    console = serve([ClusterReader(CLUSTER, lambda: api, ROOTS, pause_seconds=0.1)])
    opened = [console.open() for _ in range(8)]
    for listener, _ in opened:
        until(shows(listener, "runs", "Running"))

    def rate() -> float:
        before, started = api.requests()["JobSet"], time.monotonic()
        until(lambda: api.requests()["JobSet"] >= before + 11)
        return 10 / (time.monotonic() - started)  # the first one may have begun before

    assert rate() < 12
    for _, close in opened:
        close()
    until(lambda: console.feed.num_listeners == 0)
    until(lambda: not console.feed.is_reading)
    again, _ = console.open()
    until(shows(again, "runs", "Running"))


def test_a_cluster_that_does_not_answer_is_reported(serve: Callable[[list[ClusterReader]], Console]) -> None:
    def refuse() -> FakeApi:
        raise UnavailableError("no route to <host>")

    console = serve([ClusterReader("away", refuse, ROOTS), ClusterReader(CLUSTER, lambda: api_of(2, 1), ROOTS)])
    listener, _ = console.open()
    until(shows(listener, "clusters", "no route to &lt;host&gt;"))
    until(shows(listener, "runs", "Running"))


def test_an_unexpected_error_is_shown_and_reading_goes_on(serve: Callable[[list[ClusterReader]], Console]) -> None:
    problems = [KeyError("spec")]

    class OddApi(CountedApi):
        """An API server whose first answer breaks its reader."""

        def list(self, *args: Any, **more: Any) -> list[Obj]:
            """Raise the problems, then answer."""
            if problems:
                raise problems.pop()
            return super().list(*args, **more)

    api = OddApi(list(api_of(2, 1).objects.values()))
    console = serve([ClusterReader(CLUSTER, lambda: api, ROOTS)])
    listener, _ = console.open()
    until(shows(listener, "clusters", "internal error: KeyError"))
    until(shows(listener, "runs", "Running"))
