"""The text output of `workload status`."""

from __future__ import annotations

import pytest

from tests.jobs.objects import ADMITTED, jobset
from xpk.cli.workload import views
from xpk.jobs.output.folder import Progress
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import read


@pytest.mark.parametrize("replaced", [0, 2])
def test_replacements_of_trainers_are_listed_below_restarts(replaced: int) -> None:
    annotations = {"xpk.dev/launcher": "ray"}
    result = read(jobset(annotations=annotations, restarts=1), Snapshot(jobsets=[], workloads=[ADMITTED], events=[]))
    assert result.launcher == "ray"
    message = views.status(result, Progress(5, 1.5, replacements=replaced), "dev").splitlines()
    (at,) = (index for index, line in enumerate(message) if line.startswith("  restarts   0 of "))
    more = "             and 2 replacements of trainers on the same hosts, which count as well"
    assert (message[at + 1] == more) is bool(replaced)
