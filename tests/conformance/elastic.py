"""Elastic slices: a slice that fails restarts alone, while the others run."""

from __future__ import annotations

from tests.conformance.case_environment import FOREVER, Ground, case
from tests.conformance.failure import ATTEMPT, FATAL, SPENT, failed
from tests.conformance.life import PREFIX
from xpk.api.base import Obj
from xpk.model.status import Phase

# The first attempt of slice 1 ends as the case says, its second one ends the workload; slice 0 runs all the time.
UNTIL_THEN = 'until [ -e "$XPK_OUTPUT_DIR/end" ]; do sleep 0.2; done'
SLICE_1_FAILS = (
    f'{ATTEMPT}mkdir -p "$XPK_OUTPUT_DIR"; case $MEGASCALE_SLICE_ID$XPK_RESTART_ATTEMPT in '
    f'10) {{}};; 11) touch "$XPK_OUTPUT_DIR/end";; *) echo up; {UNTIL_THEN};; esac'
)


def submit(ground: Ground, script: str, *, max_restarts: int = 0) -> None:
    """Create an elastic workload of two slices."""
    ground.submit("a", script, slices=2, min_slices=1, max_restarts=max_restarts, is_supervised=False)


def events(ground: Ground) -> set[str]:
    """Return the reasons of the JobSet's events."""
    listed = ground.api.list("Event", ground.namespace)
    return {event["reason"] for event in listed if event["involvedObject"]["kind"] == "JobSet"}


def check_slice_1_restarted(ground: Ground, *, counted: int) -> None:
    """Check that a workload succeeded after one restart of slice 1, without an effect on slice 0."""
    result = ground.ended("a")
    assert (result.phase, result.why) == (Phase.SUCCEEDED, "AllJobsCompleted")
    assert result.exits == {"s0/h0": 0, "s0/h1": 0, "s1/h0": 0, "s1/h1": 0}
    status: Obj = ground.jobset("a")["status"]
    (slices,) = status["replicatedJobsStatus"]
    assert status.get("restarts", 0) == 0, "the JobSet itself did not restart"
    assert slices["jobRestarts"] == [0, 1]
    assert (slices.get("jobRestartsCountTowardsMax") or [0, 0]) == [0, counted]
    labels = [pod["metadata"]["labels"] for pod in ground.pods("a")]
    attempts = [(item[f"{PREFIX}job-index"], item[f"{PREFIX}job-restart-attempt"]) for item in labels]
    assert sorted(attempts) == [("0", "0"), ("0", "0"), ("1", "1"), ("1", "1")]
    said = {f"s0/h{host}": ["attempt 0", "up"] for host in (0, 1)}
    assert ground.said("a") == said | {f"s1/h{host}": ["attempt 1"] for host in (0, 1)}


@case(slices=2)
def an_elastic_slice_that_fails_restarts_alone(ground: Ground) -> None:
    crash = f'[ "$TPU_WORKER_ID" = 0 ] || exit 1; {FOREVER}'
    submit(ground, SLICE_1_FAILS.format(crash), max_restarts=1)
    check_slice_1_restarted(ground, counted=1)
    assert "RestartJobFailurePolicyAction" in events(ground)


@case(slices=2)
def a_deleted_elastic_slice_that_saves_is_not_counted(ground: Ground) -> None:
    submit(ground, SLICE_1_FAILS.format(FOREVER))
    ground.running("a")
    ground.await_line("a", "up", hosts=4)
    pod = next(host.pod for host in ground.status("a").hosts if host.slice == 1)
    ground.api.delete("Pod", pod, ground.namespace)
    check_slice_1_restarted(ground, counted=0)
    assert "RestartJobAndIgnoreMaxRestartsFailurePolicyAction" in events(ground)


@case(slices=2)
def restarts_of_elastic_slices_are_limited_in_sum(ground: Ground) -> None:
    fails = f'[ "$MEGASCALE_SLICE_ID" = 0 ] || {UNTIL_THEN}; [ "$TPU_WORKER_ID" = 0 ] || exit 7; {FOREVER}'
    ends = f'touch "$XPK_OUTPUT_DIR/end"; {FOREVER}'
    once = f'{ATTEMPT}mkdir -p "$XPK_OUTPUT_DIR"; if [ "$XPK_RESTART_ATTEMPT" = 0 ]; then {fails}; else {ends}; fi'
    submit(ground, once, max_restarts=1)
    result = ground.ended("a")
    assert (result.phase, result.why, result.exits) == (Phase.FAILED, SPENT, {"s1/h1": 7})
    (slices,) = ground.jobset("a")["status"]["replicatedJobsStatus"]
    assert slices["jobRestartsCountTowardsMax"] == [1, 0], "the first slice used the only restart"


@case(slices=2)
def a_fatal_exit_code_of_an_elastic_slice_fails_all(ground: Ground) -> None:
    fatal = f'[ "$MEGASCALE_SLICE_ID$TPU_WORKER_ID" != 11 ] || exit 42; {FOREVER}'
    submit(ground, fatal, max_restarts=3)
    assert ground.ended("a") == failed(FATAL, "s1/h1", 42)
