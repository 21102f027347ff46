"""Assumptions that a run has measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.report.runs import RunWriter, one_kill
from xpk.jobs.forecast.forecast import assumptions_of
from xpk.jobs.forecast.measured import job_of_run
from xpk.jobs.report.programs import read_folder
from xpk.jobs.report.record import RunRecord
from xpk.model.errors import NotFoundError
from xpk.model.status import Phase, WorkloadStatus
from xpk_shared.goodput.failures import FailureRate

PRIOR = FailureRate.prior(1000.0)


def status(**changes: Any) -> WorkloadStatus:
    fields: dict[str, Any] = {
        "name": "w", "namespace": "default", "phase": Phase.SUCCEEDED, "reason": "", "priority": "medium",
        "accelerator_type": "v5litepod-8", "num_slices": 2, "hosts_per_slice": 2, "num_hosts": 4, "restarts": 1,
        "restarts_counted": 1, "max_restarts": 3, "created": "2026-01-31T12:00:00Z", "started": None, "finished": None,
        "queue": None, "cluster_queue": None, "position": None, "ahead": (), "conditions": (), "checks": (),
        "quota": (), "user": "", "command": (), "output_dir": "", "hosts": (), "troubles": (), "restart_history": (),
        "events": (), "maker": "xpk",
    }  # fmt: skip
    return WorkloadStatus(**(fields | changes))


def test_the_parts_of_a_recovery_become_assumptions(tmp_path: Path) -> None:
    job = job_of_run(read_folder(one_kill(tmp_path)), status(restarts_in_place=1), PRIOR)
    assumed, sources = assumptions_of(job)
    assert job.step_seconds == pytest.approx(0.4)
    assert assumed.detection == pytest.approx(0.4 - 0.2)  # half a step had been computed
    assert assumed.restart_processes == pytest.approx(1.4 + 2.8, abs=0.1)
    assert assumed.restore == pytest.approx(0.9, abs=0.1) and assumed.compilation == pytest.approx(1.2, abs=0.1)
    assert sources["restore"] == "workload w" and sources["repair"] == "assumed"
    assert assumed.process_share == pytest.approx(1.22 / 2)


def test_recoveries_that_differ_have_their_mean_which_decides_on_goodput(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 10)
    for down in (1.0, 2.0, 9.0):
        run.kill((1, 1), noticed=0.5, down=down)
        run.train(0, 10)
    restarts = status(restarts=3, restarts_in_place=3)
    assumed, _ = assumptions_of(job_of_run(read_folder(run.write()), restarts, PRIOR))
    one = RunWriter(tmp_path / "one")
    one.train(0, 10)
    one.kill((1, 1), noticed=0.5, down=4.0)
    one.train(0, 10)
    same, _ = assumptions_of(job_of_run(read_folder(one.write()), status(restarts_in_place=1), PRIOR))
    assert assumed.restart_processes == pytest.approx(same.restart_processes, abs=0.01)


def test_new_pods_are_told_from_restarts_in_place(tmp_path: Path) -> None:
    assumed, sources = assumptions_of(job_of_run(read_folder(one_kill(tmp_path)), status(), PRIOR))
    assert assumed.restart_pods == pytest.approx(1.4 + 2.8, abs=0.1)
    assert sources["restart_processes"] != "workload w"


def test_a_recovery_from_several_failures_is_not_counted(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 10)
    run.kill((1, 1), noticed=0.5, down=1.0)
    run.all("start", pid=1)
    run.kill((1, 1), noticed=0.5, down=50.0)
    run.train(0, 5)
    _, sources = assumptions_of(job_of_run(read_folder(run.write()), status(restarts=2), PRIOR))
    assert sources["restart_pods"] != "workload w"


def test_restarts_and_chip_hours_update_the_prior(tmp_path: Path) -> None:
    record = read_folder(one_kill(tmp_path))
    rate = job_of_run(record, status(), PRIOR).rate
    assert rate.failures == 2
    assert 0 < rate.chip_hours - 1000.0 < 16 * 120 / 3600


def test_the_slowest_host_counts_for_a_save(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.train(0, 10)
    for blocked, who in ((0.1, (0, 0)), (0.3, (1, 1))):
        run.event("save", who, seconds=2.0, step=10, blocked=blocked)
        run.event("local_save", who, seconds=0.5, step=10, blocked=blocked / 10)
    assumed, _ = assumptions_of(job_of_run(read_folder(run.write()), status(restarts=0), PRIOR))
    assert [assumed.save, assumed.commit] == pytest.approx([0.3, 1.7])
    assert [assumed.local_save, assumed.local_commit] == pytest.approx([0.03, 0.47])


def test_a_run_without_a_step_has_measured_nothing() -> None:
    with pytest.raises(NotFoundError, match="has not finished a step"):
        job_of_run(RunRecord(), status(), PRIOR)
