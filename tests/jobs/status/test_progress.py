"""Progress of the workloads of a list: what it reads, and how many at a time."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from tests.jobs.status.progress import status_of
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.status.progress import progress_of_all
from xpk.model.specs import Target
from xpk.model.status import Phase, WorkloadStatus

HERE = Target(emulated=True, sets_slice_environment=True, output_root="", on_this_machine=True)
LINE = '{"step": 12, "loss": 1.5, "total_steps": 48}\n'


def workloads(folder: Path, count: int, phase: Phase = Phase.RUNNING) -> list[WorkloadStatus]:
    """Return workloads whose hosts have written metrics and events."""
    statuses = []
    for number in range(count):
        own = folder / f"{phase}-{number}"
        (own / "events").mkdir(parents=True)
        (own / "metrics.jsonl").write_text(LINE)
        (own / "events" / "s0-h0.jsonl").write_text("{}\n")
        statuses.append(replace(status_of(own), name=own.name, phase=phase))
    return statuses


def test_one_file_is_read_for_each_workload_that_runs_and_none_for_others(tmp_path: Path) -> None:
    running, ended = workloads(tmp_path, 20), workloads(tmp_path, 5, Phase.SUCCEEDED)
    queued = workloads(tmp_path, 5, Phase.QUEUED)
    opened: list[Path] = []
    is_counting = True

    def note(event: str, arguments: tuple[object, ...]) -> None:  # a hook stays for the life of the process
        if is_counting and event == "open" and str(arguments[0]).startswith(str(tmp_path)):
            opened.append(Path(str(arguments[0])).relative_to(tmp_path))

    sys.addaudithook(note)
    newest = progress_of_all([*running, *ended, *queued], OutputRoots(lambda: HERE))
    is_counting = False
    assert {key[1]: progress.step for key, progress in newest.items()} == {one.name: 12 for one in running}
    files = sorted(map(str, opened))
    assert files == sorted(f"{one.name}/metrics.jsonl" for one in running)


def test_at_most_sixteen_folders_are_read_at_a_time(tmp_path: Path) -> None:
    lock, now, most = threading.Lock(), 0, 0

    def target() -> Target:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1
        return HERE

    assert len(progress_of_all(workloads(tmp_path, 40), OutputRoots(target))) == 40
    assert 1 < most <= 16


def test_without_a_workload_that_runs_not_even_the_cluster_is_asked(tmp_path: Path) -> None:
    def target() -> Target:
        raise AssertionError("nothing is read")

    assert progress_of_all(workloads(tmp_path, 3, Phase.FAILED), OutputRoots(target)) == {}
