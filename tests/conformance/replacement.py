"""Workloads that need all slices: a disrupted host costs only its slice new pods."""

from __future__ import annotations

from tests.conformance.case_environment import FOREVER, Ground, case
from tests.conformance.elastic import events
from tests.conformance.failure import ATTEMPT
from xpk.model.status import Phase

SUCCEEDS_LATER = f'{ATTEMPT}[ "$XPK_RESTART_ATTEMPT" != 0 ] || {{ echo up; {FOREVER}; }}'


def check_one_slice_is_replaced(ground: Ground, slice_id: int) -> None:
    """Delete the pod of a slice's first host, and check that the others keep theirs and all start again."""
    ground.submit("a", SUCCEEDS_LATER, slices=2, replaces_slices=True, restart_in_place=True, max_restarts=0)
    ground.running("a")
    ground.await_line("a", "up", hosts=4)
    before = {host.label: host.pod for host in ground.status("a").hosts}
    ground.api.delete("Pod", before[f"s{slice_id}/h0"], ground.namespace)
    result = ground.ended("a")
    assert (result.phase, result.restarts, result.counted) == (Phase.SUCCEEDED, 1, 0)
    assert result.exits == dict.fromkeys(before, 0)
    pods = {host.label: host.pod for host in ground.status("a").hosts}
    kept = {label for label in before if pods[label] == before[label]}
    assert kept == {f"s{1 - slice_id}/h{host}" for host in (0, 1)}
    (slices,) = ground.jobset("a")["status"]["replicatedJobsStatus"]
    assert slices["jobRestarts"] == [1 - slice_id, slice_id]
    assert "RestartJobAndIgnoreMaxRestartsFailurePolicyAction" in events(ground)


@case(slices=2)
def a_deleted_pod_costs_only_its_slice_new_pods(ground: Ground) -> None:
    check_one_slice_is_replaced(ground, 1)


@case(slices=2)
def the_other_slices_follow_a_replaced_first_host(ground: Ground) -> None:
    check_one_slice_is_replaced(ground, 0)
