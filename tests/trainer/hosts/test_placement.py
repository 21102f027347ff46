"""Runs of one workload on two clusters that share an output folder: the older one commits no more checkpoints."""

from __future__ import annotations

import functools
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.trainer import cloud_storage
from tests.trainer.small import WORKLOADS, arguments, one_host
from tests.waiting import until
from trainer.errors import ExitCode, FatalError, MovedError
from trainer.hosts.bootstrap import Host
from trainer.hosts.lease import Holder, Lease
from trainer.hosts.placement import CLUSTER, FILE, RUN, Placed, read_placement
from trainer.storage import open_place
from xpk.jobs.placement import lease as leasing
from xpk.model import names
from xpk_shared.storage import Place

SECONDS = 60
EAST, WEST = "uid on east", "uid on west"
Lost: TypeAlias = queue.Queue[tuple[Holder, ExitCode]]
Start = Callable[..., tuple[Lease, Lost]]


@pytest.fixture(params=["folder", "bucket"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return an output folder, and one in a bucket."""
    return open_place(tmp_path / "out") if request.param == "folder" else cloud_storage.place()


def decide(out: Place, epoch: int, cluster: str, run: str = "r1") -> None:
    """Decide where the workload runs, as a placer does."""
    slot = (out / FILE).slot()
    version, _ = slot.look()
    assert leasing.write(slot, leasing.Lease(run, epoch, cluster), version)


def variables(cluster: str, run: str = "r1") -> dict[str, str]:
    return {RUN: run, CLUSTER: cluster}


@pytest.fixture
def start(out: Place) -> Iterator[Start]:
    """Return a factory of the leases of a run's trainers; renewals are too rare to notice anything."""
    made = []

    def make(cluster: str, run: str = "r1") -> tuple[Lease, Lost]:
        lost: Lost = queue.Queue()
        job = {"east": EAST, "west": WEST}[cluster]
        host = Host(1, 0, 1, 0, workload="lm", job_id=job)
        read = functools.partial(read_placement, out, variables(cluster, run))
        report = lambda holder, code: lost.put((holder, code))  # noqa: E731
        made.append(Lease(out, host, report, read_placed=read, beat_seconds=SECONDS, stale_seconds=SECONDS))
        return made[-1], lost

    yield make
    for item in made:
        item.release()


def test_the_file_is_the_one_that_placers_write() -> None:
    assert FILE == names.LEASE_FILE


def test_the_newest_decision_gives_its_cluster_a_right(out: Place) -> None:
    assert read_placement(out, variables("east")) == Placed("r1", 0, "east"), "nothing is decided yet"
    decide(out, 7, "east")
    assert read_placement(out, variables("east")) == Placed("r1", 7, "east")
    assert read_placement(out, variables("west")) == Placed("r1", 0, "west")
    assert read_placement(out, variables("east", run="r0")) == Placed("r0", 0, "east"), "an earlier workload"
    assert read_placement(out, {}) == Placed(), "a workload of one cluster"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"run": "r1"}', b"\xff", b"[" * 9999]
    + [json.dumps({"run": "r1", "cluster": "east", "epoch": bad}).encode() for bad in (-1, True, "7", 1e99, None)],
)
def test_a_damaged_decision_gives_no_right(content: bytes, tmp_path: Path) -> None:
    out = open_place(tmp_path / "out")
    (out / FILE).slot().put(content or b" ", 0)
    assert read_placement(out, variables("east")) == Placed("r1", 0, "east")


def test_a_run_on_the_chosen_cluster_takes_over_and_the_older_one_commits_nothing(out: Place, start: Start) -> None:
    decide(out, 1, "east")
    east, lost = start("east")
    east.take()
    assert east.check() == ""
    decide(out, 2, "west")
    assert east.check() == "", "until the other one has begun, what it saves is of use"
    west, kept = start("west")
    west.take()  # at once, although the other one is alive
    assert east.check().startswith("workload 'lm' (attempt 0 on ")
    assert east.check().endswith(" of cluster 'west') has taken over the output folder")
    holder, code = lost.get(timeout=SECONDS)
    assert (holder.job, holder.epoch, code) == (WEST, 2, ExitCode.MOVED)
    assert lost.empty(), "it is reported once"
    assert west.check() == "" and kept.empty()


def test_a_run_that_starts_late_on_another_cluster_ends_as_it_continues_elsewhere(out: Place, start: Start) -> None:
    decide(out, 2, "west")
    start("west")[0].take()
    with pytest.raises(MovedError, match=r"the run continues on cluster 'west': .* is in use by workload 'lm'"):
        start("east")[0].take()


def test_another_workload_of_the_name_is_refused_as_any_other_run_is(out: Place, start: Start) -> None:
    decide(out, 2, "west", run="r2")
    start("west", run="r2")[0].take()
    with pytest.raises(FatalError, match=r"^output folder .* is in use by workload 'lm'") as refused:
        start("east")[0].take()
    assert refused.value.exit_code == ExitCode.FATAL


def test_a_workload_that_returns_to_a_cluster_takes_over_as_well(out: Place, start: Start) -> None:
    for epoch, cluster in enumerate(("east", "west", "east"), start=1):
        decide(out, epoch, cluster)
        own, _ = start(cluster)
        own.take()
        assert own.check() == ""


def test_runs_that_race_each_other_commit_one_checkpoint_after_a_takeover_at_most(out: Place, start: Start) -> None:
    """A commit that has passed the check may end after the takeover; none begins later."""
    lock, log = threading.Lock(), list[tuple[str, int]]()  # what happened: the event, and the epoch

    def run(cluster: str, epoch: int, taken: threading.Event) -> None:
        own, _ = start(cluster)
        own.take()
        with lock:
            log.append(("taken", epoch))
        taken.set()
        for _ in range(200):
            if own.check():
                return
            with lock:
                log.append(("commit", epoch))
            if epoch == 5 and len(log) > 60:
                return

    runs = []
    for epoch in range(1, 6):
        cluster = ("east", "west")[epoch % 2]
        decide(out, epoch, cluster)
        taken = threading.Event()
        runs.append(threading.Thread(target=run, args=(cluster, epoch, taken)))
        runs[-1].start()
        assert taken.wait(SECONDS)
    for thread in runs:
        thread.join(SECONDS)
    for epoch in range(1, 5):
        after = log[log.index(("taken", epoch + 1)) :]
        assert after.count(("commit", epoch)) <= 1
    assert ("commit", 5) in log


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_trainer_ends_when_another_cluster_has_taken_its_run_over(tmp_path: Path) -> None:
    out, settings = tmp_path / "out", ["data.max_bytes=50000", "checkpoint.every=1", "checkpoint.max_to_keep=100000"]
    place = open_place(out)

    def train(cluster: str, job: str, steps: int, log: Any, attempt: int = 0) -> subprocess.Popen[bytes]:
        own = one_host(tmp_path / cluster, attempt) | variables(cluster) | {"XPK_JOB_ID": job, "XPK_WORKLOAD": "lm"}
        env = os.environ | {"PYTHONPATH": str(WORKLOADS), "JAX_PLATFORMS": "cpu", "XPK_OUTPUT_DIR": str(out), **own}
        command = [sys.executable, "-m", "trainer", "train", *arguments([f"run.steps={steps}", *settings])]
        return subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)

    def saved() -> set[int]:
        return {int(path.name) for path in (out / "checkpoints").glob("*") if path.name.isdigit()}

    decide(place, 1, "east")
    for cluster in ("east", "west"):
        (tmp_path / cluster).mkdir()
    with (tmp_path / "log").open("wb") as log:
        east = train("east", EAST, 100000, log)
        try:
            until(lambda: len(saved()) >= 2, seconds=120)
            decide(place, 2, "west")
            west = train("west", WEST, max(saved()) + 30, log)
            assert east.wait(120) == 80, (tmp_path / "log").read_text()
            last = max(saved())
            again = train("east", EAST, 100000, log, attempt=1)  # as its supervisor or its JobSet would start it again
            assert again.wait(60) == 80, (tmp_path / "log").read_text()
            assert west.wait(240) == 0, (tmp_path / "log").read_text()
        finally:
            for process in (east, west):
                process.kill()
                process.wait()
    events = [json.loads(line) for line in (out / "events" / "s0-h0.jsonl").read_text().splitlines()]
    begin = next(event["step"] for event in events if event["event"] == "choose" and event["step"])
    assert 0 < begin <= last, "it has continued the run"
    assert not [event for event in events if event["event"] == "fail"], "the records are those of the other one"
