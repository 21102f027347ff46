"""Status and progress of a workload whose output is in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.jobs.objects import jobset
from xpk.jobs.output.folder import Progress, latest_progress
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.goodput import with_goodput
from xpk.jobs.status.reader import read
from xpk.model import names
from xpk.model.status import WorkloadStatus

COMPLETED = [{"type": "Completed", "status": "True"}]


def status_of(folder: Path, replicas: int = 2, hosts: int = 2, **status: Any) -> WorkloadStatus:
    """Return the status of a workload of 2 x 2 hosts that writes to a folder."""
    made = jobset(annotations={names.OUTPUT_ANNOTATION: str(folder), names.TYPE_ANNOTATION: "v5litepod-8"}, **status)
    (job,) = made["spec"]["replicatedJobs"]
    job["replicas"], job["template"]["spec"]["parallelism"] = replicas, hosts
    return read(made, Snapshot(jobsets=[]))


def shown(folder: Path, status: WorkloadStatus) -> Progress:
    """Return the progress as `workload status` shows it."""
    progress = latest_progress(str(folder))
    assert progress is not None and progress.goodput is None
    return with_goodput(progress, str(folder), status)
