"""Failures: exit codes that restart a workload, count, or end it; and SIGTERM."""

from __future__ import annotations

import time

from tests.conformance.case_environment import FOREVER, Ground, Outcome, case
from tests.conformance.life import done
from xpk.jobs import lifecycle
from xpk.model.status import Phase

ATTEMPT = "echo attempt $XPK_RESTART_ATTEMPT; "
FIRST = f'{ATTEMPT}if [ "$XPK_RESTART_ATTEMPT" = 0 ]; then {{}}; fi; '
FATAL, SPENT = "FailJobSetFailurePolicyAction", "ReachedMaxRestarts"


def failed(why: str, host: str, code: int, *, restarts: int = 0) -> Outcome:
    """Return the outcome of a workload that one host failed; no pods of the other hosts remain."""
    counts = {"restarts": restarts, "counted": restarts}
    return Outcome(Phase.FAILED, "Failed", why, {host: code}, **counts, blamed=(host, code))


def check_second_attempt(ground: Ground, *, counted: int) -> None:
    """Check that a workload succeeded in its second attempt."""
    exits = {"s0/h0": 0, "s0/h1": 0}
    assert ground.ended("a") == done(exits, restarts=1, counted=counted)
    assert ground.said("a") == {label: ["attempt 1"] for label in exits}
    labels = {pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] for pod in ground.pods("a")}
    assert labels == {"1"}
    assert len(ground.status("a").restart_history) == 1


@case()
def a_fatal_exit_code_fails_immediately(ground: Ground) -> None:
    ground.submit("a", f'[ "$TPU_WORKER_ID" = 0 ] || exit 42; {FOREVER}', max_restarts=3)
    assert ground.ended("a") == failed(FATAL, "s0/h1", 42)
    finished = next(c for c in ground.kueue_workload("a")["status"]["conditions"] if c["type"] == "Finished")
    assert (finished["status"], finished["reason"]) == ("True", "Failed")


@case()
def a_crash_restarts_and_is_counted(ground: Ground) -> None:
    ground.submit("a", FIRST.format(f'[ "$TPU_WORKER_ID" = 0 ] || exit 1; {FOREVER}'), max_restarts=1)
    check_second_attempt(ground, counted=1)


@case()
def exit_code_143_without_a_request_is_a_failure(ground: Ground) -> None:
    unasked = f'[ "$TPU_WORKER_ID" = 0 ] || exit 143; {FOREVER}'
    ground.submit("a", unasked, peer_watch=True)
    assert ground.ended("a") == failed(SPENT, "s0/h1", 1)


@case()
def a_lost_peer_is_counted_once(ground: Ground) -> None:
    lost = '[ "$TPU_WORKER_ID" = 0 ] || { sleep 0.5; exit 1; }; trap "exit 75" TERM; sleep 1000 & wait'
    ground.submit("a", FIRST.format(lost), max_restarts=1)
    check_second_attempt(ground, counted=1)


@case()
def restarts_are_limited(ground: Ground) -> None:
    ground.submit("a", f'{ATTEMPT}[ "$TPU_WORKER_ID" = 0 ] || exit 7; {FOREVER}', max_restarts=2)
    assert ground.ended("a", seconds=60) == failed(SPENT, "s0/h1", 7, restarts=2)
    assert ground.said("a") == {"s0/h1": ["attempt 2"]}


@case()
def a_failed_slice_ends_the_others(ground: Ground) -> None:
    ground.submit("a", f'[ "$TPU_WORKER_ID" = 1 ] || exit 3; {FOREVER}')
    assert ground.ended("a") == failed(SPENT, "s0/h0", 3)


@case(slices=2)
def a_slice_restarts_with_the_others(ground: Ground) -> None:
    crash = f'[ "$MEGASCALE_SLICE_ID$TPU_WORKER_ID" != 11 ] || exit 1; {FOREVER}'
    ground.submit("a", FIRST.format(crash), slices=2, max_restarts=1)
    exits = dict.fromkeys(("s0/h0", "s0/h1", "s1/h0", "s1/h1"), 0)
    assert ground.ended("a") == done(exits, restarts=1, counted=1)
    assert ground.said("a") == {label: ["attempt 1"] for label in exits}


@case()
def a_missing_command_is_fatal(ground: Ground) -> None:
    ground.submit("a", f'[ "$TPU_WORKER_ID" = 1 ] || exec no-such-program; {FOREVER}', max_restarts=3)
    assert ground.ended("a") == failed(FATAL, "s0/h0", 127)
    assert "no-such-program: " in ground.said("a")["s0/h0"][0]


@case()
def a_command_without_permission_is_fatal(ground: Ground) -> None:
    ground.submit("a", f'[ "$TPU_WORKER_ID" = 1 ] || exec /etc/passwd; {FOREVER}', max_restarts=3)
    assert ground.ended("a") == failed(FATAL, "s0/h0", 126)
    assert "Permission denied" in ground.said("a")["s0/h0"][0]


@case()
def a_missing_command_without_a_shell_does_not_start(ground: Ground) -> None:
    ground.submit("a", "-", command=("no-such-program", "--flag"))
    result = ground.ended("a")
    assert (result.phase, result.why) == (Phase.FAILED, SPENT)
    assert set(result.exits.values()) == {128}
    assert {host.reason for host in ground.status("a").hosts} == {"StartError"}


@case()
def a_deleted_pod_that_saves_is_not_counted(ground: Ground) -> None:
    ground.submit("a", FIRST.format("echo up; trap 'sleep 1; exit 143' TERM; sleep 1000 & wait"))
    ground.running("a")
    ground.await_line("a", "up")
    ground.api.delete("Pod", ground.status("a").hosts[1].pod, ground.namespace)
    check_second_attempt(ground, counted=0)


@case()
def a_deleted_pod_that_ignores_sigterm_is_killed(ground: Ground) -> None:
    stubborn = "trap '' TERM; echo up; while :; do sleep 1; done"
    ground.submit("a", FIRST.format(stubborn), max_restarts=1, termination_grace_seconds=2)
    ground.running("a")
    ground.await_line("a", "up")
    begin = time.monotonic()
    ground.api.delete("Pod", ground.status("a").hosts[1].pod, ground.namespace)
    ground.until("a", lambda status: status.restarts == 1)
    assert time.monotonic() - begin >= 2
    check_second_attempt(ground, counted=1)


@case()
def output_survives_a_restart(ground: Ground) -> None:
    write = 'mkdir -p "$XPK_OUTPUT_DIR"; echo kept > "$XPK_OUTPUT_DIR/$TPU_WORKER_ID"; sleep 0.5; exit 1'
    ground.submit("a", FIRST.format(write) + 'cat "$XPK_OUTPUT_DIR"/[01]', max_restarts=1)
    assert ground.ended("a").phase is Phase.SUCCEEDED
    assert ground.said("a")["s0/h0"][:2] == ["attempt 1", "kept"]


@case()
def a_suspended_workload_resumes(ground: Ground) -> None:
    ground.submit("a", ATTEMPT + FOREVER)
    ground.running("a")
    ground.await_line("a", "up")
    ground.submit("b", "true")
    ground.queued("b")
    lifecycle.set_active(ground.api, "a", ground.namespace, active=False)
    result = ground.until("a", lambda status: status.phase is Phase.SUSPENDED and not ground.pods("a"))
    assert (result.reason, result.position, result.restarts_counted) == ("suspended by its user", None, 0)
    evicted = next(c for c in ground.kueue_workload("a")["status"]["conditions"] if c["type"] == "Evicted")
    assert (evicted["status"], evicted["reason"]) == ("True", "Deactivated")
    assert ground.ended("b").phase is Phase.SUCCEEDED, "its slices are free"
    lifecycle.set_active(ground.api, "a", ground.namespace, active=True)
    assert ground.running("a").restarts_counted == 0
