"""One run at a time in an output folder: a second one is rejected, restarts and successors of dead runs are not."""

import errno
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.trainer import cloud_storage
from tests.trainer.small import WORKLOADS, arguments, run_alone
from tests.waiting import until
from trainer.errors import ExitCode, FatalError
from trainer.hosts.bootstrap import Host
from trainer.hosts.lease import Holder, Lease
from trainer.storage import open_place
from xpk_shared.storage import Place
from xpk_shared.storage.disk_slot import DiskSlot
from xpk_shared.storage.errors import Unreachable

SECONDS = 60
ELSEWHERE = ("another boot", "pid:[1]", "7", "1")
Lost: TypeAlias = queue.Queue[tuple[Holder, ExitCode]]
Leases = Callable[..., tuple[Lease, Lost]]


@pytest.fixture(params=["folder", "bucket"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return an output folder, and one in a bucket."""
    return open_place(tmp_path / "out") if request.param == "folder" else cloud_storage.place()


@pytest.fixture
def lease(out: Place) -> Iterator[Leases]:
    """Return a factory of leases, with a queue of their new holders; all are released after the test."""
    made = []

    def make(
        job: str, attempt: int = 0, *, process: int = 0, beat: float = 0.05, stale: float = SECONDS
    ) -> tuple[Lease, Lost]:
        lost: Lost = queue.Queue()
        host = Host(1, 0, 2, process, attempt=attempt, workload=job, job_id=job and f"uid of {job}")
        report = lambda holder, code: lost.put((holder, code))  # noqa: E731
        made.append(Lease(out, host, report, beat_seconds=beat, stale_seconds=stale))
        return made[-1], lost

    yield make
    for item in made:
        item.release()


def held_elsewhere(out: Place, over: int = 0, **more: object) -> int:
    """Write a lease as a process on another machine does."""
    holder = {"job": "uid of one", "workload": "one", "attempt": 3, "host": "node-7", "process": ELSEWHERE}
    content = holder | {"released": False, "write": over} | more
    return (out / "lease.json").slot().put(json.dumps(content).encode(), over)


def take_over(out: Place) -> None:
    """Write a lease of another run over the newest one, whenever its holder renews it."""
    while True:
        with suppress(FileExistsError):
            held_elsewhere(out, (out / "lease.json").slot().look()[0], job="uid of two", workload="two")
            return


def test_a_second_run_is_rejected_with_the_name_of_the_first(lease: Leases) -> None:
    """Immediately, because a live local process needs no renewal."""
    lease("one", attempt=2, beat=SECONDS)[0].take()
    for process in (0, 1):
        with pytest.raises(FatalError) as refused:
            lease("two", process=process, stale=1.0)[0].take()
        (problem,) = refused.value.problems
        assert "is in use by workload 'one' (attempt 2 on " in problem.message
        assert "another run.output_dir" in problem.hint


def test_renewals_show_that_a_remote_holder_is_alive(
    out: Place, lease: Leases, capsys: pytest.CaptureFixture[str]
) -> None:
    output = list[str]()

    def printed() -> str:
        output.append(capsys.readouterr().out)
        return "".join(output)

    held = held_elsewhere(out)
    second = lease("two")[0]
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(second.take)
        until(lambda: "is leased by workload 'one'" in printed(), seconds=SECONDS)
        held_elsewhere(out, held)
        with pytest.raises(FatalError, match=r"in use by workload 'one' \(attempt 3 on node-7\)"):
            taking.result(timeout=SECONDS)
    assert "is leased by workload 'one' (attempt 3 on node-7); waiting up to 60 s" in printed()


def test_a_stopping_holder_is_awaited(lease: Leases, capsys: pytest.CaptureFixture[str]) -> None:
    """It saves, which may take longer than the time after which a lease is stale."""
    first, lost = lease("one")
    first.take()
    with ThreadPoolExecutor(2) as pool:
        first.mark_stopping()
        deadline = time.monotonic() + SECONDS
        while not json.loads(first._slot.look()[1])["ending"]:
            assert time.monotonic() < deadline
        seconds = {0: lease("two", stale=0.5)[0], 1: lease("two", process=1, stale=0.5)[0]}
        taken = [pool.submit(second.take) for second in seconds.values()]
        try:
            deadline = time.monotonic() + 1.0
            while time.monotonic() < deadline:
                assert not any(item.done() for item in taken)
                time.sleep(0.05)
        finally:
            first.release()  # the pool ends when both have taken it
        for item in taken:
            item.result(timeout=SECONDS)
    assert lost.empty()
    assert "is leased by workload 'one' (attempt 0 on " in (report := capsys.readouterr().out)
    assert "which is stopping; waiting for it to end" in report


def test_a_stopping_holder_without_renewals_is_awaited_only_until_it_is_stale(out: Place, lease: Leases) -> None:
    held = held_elsewhere(out, ending=True)
    began = time.monotonic()
    threading.Timer(0.3, held_elsewhere, [out, held], {"ending": True}).start()
    lease("two", stale=1.0)[0].take()
    assert 1.3 <= time.monotonic() - began < SECONDS / 2


@pytest.mark.parametrize("first", ["empty", "gone"])
def test_an_incomplete_version_is_read_again(first: str, tmp_path: Path) -> None:
    """Like a network file system while another machine is writing."""
    version = tmp_path / "lease.json.1"
    version.write_bytes(b"") if first == "empty" else version.symlink_to("nowhere")
    written = tmp_path / "written"
    written.write_bytes(b"content")
    threading.Timer(0.3, written.rename, [version]).start()
    assert DiskSlot(tmp_path / "lease.json").look() == (1, b"content")


def test_a_version_that_stays_incomplete_times_out(tmp_path: Path) -> None:
    (tmp_path / "lease.json.1").symlink_to("nowhere")
    assert DiskSlot(tmp_path / "lease.json", retry_seconds=0.3).look() == (1, b"")


@pytest.mark.parametrize("links", [True, False])
def test_a_version_is_created_once_without_hard_links(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if not links:
        monkeypatch.setattr(os, "link", refused)
    slot = DiskSlot(tmp_path / "lease.json")
    assert slot.put(b"one", 0) == 1
    with pytest.raises(FileExistsError):
        slot.put(b"other", 0)
    assert slot.put(b"two", 1) == 2 and slot.look() == (2, b"two")
    assert [file.name for file in tmp_path.iterdir()] == ["lease.json.2"]


def test_a_stale_lease_is_taken_over(out: Place, lease: Leases) -> None:
    held_elsewhere(out)
    second, lost = lease("two", stale=0.3)
    began = time.monotonic()
    second.take()
    assert time.monotonic() - began > 0.3
    with pytest.raises(FatalError, match="in use by workload 'two'"):
        lease("three")[0].take()
    assert lost.empty()


def test_a_restart_takes_over_immediately_and_the_previous_attempt_ends(lease: Leases) -> None:
    first, lost = lease("one")
    first.take()
    again, held = lease("one", attempt=1)
    began = time.monotonic()
    again.take()
    lease("one", attempt=1, process=1)[0].take()
    assert time.monotonic() - began < SECONDS / 2
    holder, code = lost.get(timeout=SECONDS)
    assert (holder.workload, holder.attempt, code) == ("one", 1, ExitCode.PEER_LOST)
    first.release()  # a lost lease is not released
    with pytest.raises(FatalError):
        lease("two")[0].take()
    assert held.empty()


def test_a_released_lease_is_free_immediately(out: Place, lease: Leases) -> None:
    first, _ = lease("one")
    first.take()
    first.release()
    lease("two")[0].take()
    version, content = (out / "lease.json").slot().look()
    assert version >= 3 and json.loads(content)["workload"] == "two"


def test_a_frozen_holder_ends_after_a_takeover(out: Place, lease: Leases) -> None:
    frozen, lost = lease("one", beat=0.5)
    frozen.take()
    take_over(out)
    holder, code = lost.get(timeout=SECONDS)
    assert (holder.workload, code) == ("two", ExitCode.CRASH)


class Unanswered:
    """An output folder on a server that writes the lease, but whose answers to this host are lost for some time."""

    def __init__(self, out: Place) -> None:
        self._slot = (out / "lease.json").slot()
        self.is_lossy, self.lost = threading.Event(), 0

    def __truediv__(self, name: str) -> "Unanswered":
        return self

    def slot(self) -> "Unanswered":
        """Return the lease."""
        return self

    def look(self) -> tuple[int, bytes]:
        """Read the lease."""
        return self._slot.look()

    def put(self, content: bytes, over: int) -> int:
        """Write the lease; the answer may be lost."""
        version = self._slot.put(content, over)
        if self.is_lossy.is_set():
            self.lost += 1
            raise Unreachable(111, "no answer", "lease.json")
        return version


def in_doubt(out: Place) -> tuple[Lease, Lost, Unanswered]:
    """Return a held lease whose newest renewal was written, but not answered."""
    server, lost = Unanswered(out), Lost()
    folder: Any = server
    host = Host(workload="one", job_id="uid of one")
    made = Lease(folder, host, lambda holder, code: lost.put((holder, code)), beat_seconds=0.3, stale_seconds=SECONDS)
    made.take()
    server.is_lossy.set()
    until(lambda: server.lost > 0, seconds=SECONDS)
    return made, lost, server


def test_a_renewal_without_an_answer_is_not_taken_for_another_runs(out: Place) -> None:
    held, lost, server = in_doubt(out)
    assert held.check() == "", "the lease may be checked before the next renewal"
    server.is_lossy.clear()
    version = server.look()[0]
    until(lambda: server.look()[0] > version + 1 or not lost.empty(), seconds=SECONDS)
    assert lost.empty() and held.check() == ""
    held.release()
    assert json.loads(server.look()[1])["released"]


def test_a_lease_is_released_after_a_renewal_without_an_answer(out: Place) -> None:
    held, lost, server = in_doubt(out)
    server.is_lossy.clear()
    held.release()
    assert json.loads(server.look()[1])["released"] and lost.empty()


def test_a_takeover_after_a_renewal_without_an_answer_is_noticed(out: Place) -> None:
    held, lost, _ = in_doubt(out)
    take_over(out)
    holder, code = lost.get(timeout=SECONDS)
    assert (holder.workload, code) == ("two", ExitCode.CRASH)
    assert "workload 'two'" in held.check()


def test_one_of_many_concurrent_runs_gets_the_lease(lease: Leases) -> None:
    def take(job: str) -> bool:
        try:
            lease(job)[0].take()
        except FatalError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, [f"run-{n}" for n in range(8)])) == 1


def test_an_unreadable_lease_has_an_unknown_holder(out: Place, lease: Leases) -> None:
    slot = (out / "lease.json").slot()
    slot.put(b'{"workload": 7', slot.put(b'{"workload": "\\u001b]52;c;", "job": 1}', 0))
    lease("two", stale=0.1)[0].take()


HOLDS = """
import sys, time
from trainer.hosts.bootstrap import Host
from trainer.hosts.lease import Holder, Lease
from trainer.storage import open_place
Lease(open_place(sys.argv[1]), Host(), print).take()
print("held", flush=True)
time.sleep(600)
"""


def test_the_lease_of_a_dead_local_process_is_free_immediately(tmp_path: Path) -> None:
    environ = os.environ | {"PYTHONPATH": str(WORKLOADS)}
    held = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], env=environ, stdout=subprocess.PIPE)
    assert held.stdout is not None and held.stdout.readline() == b"held\n"
    second = Lease(open_place(tmp_path), Host(), lambda holder, code: None, stale_seconds=SECONDS)
    try:
        with pytest.raises(FatalError, match=rf"in use by another trainer on .* \(pid {held.pid}\)"):
            second.take()
    finally:
        held.send_signal(signal.SIGKILL)
        held.communicate()
    began = time.monotonic()
    second.take()
    assert time.monotonic() - began < SECONDS / 2
    second.release()


def test_a_second_trainer_on_one_folder_is_rejected(tmp_path: Path) -> None:
    environ = os.environ | {"PYTHONPATH": str(WORKLOADS), "JAX_PLATFORMS": "cpu"}
    settings = ["data.max_bytes=50000", f"run.output_dir={tmp_path}"]
    command = [sys.executable, "-m", "trainer", "train", *arguments(["run.steps=100000", *settings])]
    first = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until((tmp_path / "events" / "s0-h0.jsonl").is_file, seconds=SECONDS)
        second = run_alone("train", *arguments(["run.steps=1", *settings]))  # ends soon if it is not rejected
        assert second.returncode == 42, second.stderr
        assert second.stderr.startswith(f"error: output folder '{tmp_path}' is in use by another trainer on ")
        assert f"(pid {first.pid})" in second.stderr and second.stderr.count("\n") == 1
        starts = (tmp_path / "events" / "s0-h0.jsonl").read_text().count('"start"')
        assert starts == 1 and first.poll() is None
    finally:
        first.kill()
        first.wait()
