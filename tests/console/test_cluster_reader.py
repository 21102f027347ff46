"""Readings of a cluster by the console, without its server."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.console.hosts import api_of
from tests.jobs.objects import ROOTS
from tests.jobs.report.runs import RunWriter
from tests.jobs.simulation.queues import queued_status
from xpk.console.cluster_reader import ClusterReader, obstacles
from xpk.jobs.output.roots import Claim, OutputRoots
from xpk.model.errors import UnavailableError
from xpk.model.forecast import StartEstimate
from xpk.model.status import Phase


@dataclass(frozen=True)
class FlakyRoots(OutputRoots):
    """Output that cannot be read once: for restarts and progress it can, for goodput it cannot."""

    folder: str = ""
    failures: list[bool] = field(default_factory=lambda: [False, False, True])

    def to_read(self, status: Claim) -> str:
        """Return the folder, or raise the next failure."""
        if self.failures and self.failures.pop(0):
            raise UnavailableError("the bucket does not answer")
        return self.folder


def test_the_goodput_of_an_ended_run_is_read_again_after_a_failure(tmp_path: Path) -> None:
    run = RunWriter(tmp_path, slices=1, hosts=1, now=time.time() - 60)
    run.train(0, 20)
    run.write()
    api = api_of(1, 1, output=str(tmp_path))
    (jobset,) = [obj for obj in api.objects.values() if obj["kind"] == "JobSet"]
    done = {"type": "Completed", "status": "True", "reason": "AllJobsCompleted", "message": ""}
    done["lastTransitionTime"] = jobset["metadata"]["creationTimestamp"]
    jobset["status"] |= {"terminalState": "Completed", "conditions": [done]}
    reader = ClusterReader("c", lambda: api, FlakyRoots(ROOTS.target, folder=str(tmp_path)))
    (first,) = reader.read().runs
    assert first.status.phase is Phase.SUCCEEDED and first.progress and first.progress.goodput is None
    reader.read()
    (last,) = reader.read().runs
    assert last.progress and last.progress.goodput is not None


def test_workloads_of_one_name_that_wait_for_one_reason_are_explained_by_one_line() -> None:
    """They are in several namespaces."""
    reason = "admission checks are not simulated"
    unknown = StartEstimate(earliest=None, expected=None, latest=None, rests_on=(), preempts=(), reason=reason)
    waiting = [queued_status(namespace=namespace, start=unknown) for namespace in ("red", "blue")]
    assert obstacles(waiting) == (reason,)
