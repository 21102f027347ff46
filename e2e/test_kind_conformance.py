"""The cases of behavior that the local control plane passes, on real pods under JobSet and Kueue.

eval "$(e2e/environment/up)" && .venv/bin/python -m pytest e2e/test_kind_conformance.py --timeout 900
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest

from e2e.kind_cluster import SLICES, SPARE_SLICES, Place
from tests.conformance.case_environment import Case, Ground, SideBySide, selected
from tests.conformance.cases import CASES
from xpk.capacity.kind.provider import KindProvider
from xpk.model.errors import NotFoundError

# Each of these is covered on pods by another case or drill too; locally all of them run with every change.
EXTENDED = {
    "a_command_without_permission_is_fatal",
    "a_deleted_pod_that_ignores_sigterm_is_killed",
    "a_fatal_exit_code_of_an_elastic_slice_fails_all",
    "a_slice_restarts_with_the_others",
    "an_elastic_slice_that_fails_restarts_alone",
    "borrowed_quota_is_preempted_by_priority",
    "a_failed_slice_ends_the_others",
    "queues_of_two_namespaces_share_a_quota",
    "restarts_are_limited",
    "restarts_of_elastic_slices_are_limited_in_sum",
    "of_equal_workloads_the_last_to_get_quota_is_preempted",
    "the_lowest_and_youngest_are_preempted",
    "admission_is_ordered_by_priority_and_age",
    "a_deleted_pending_workload_never_runs",
    "a_preempted_workload_resumes_by_itself",
    "a_suspended_workload_leaves_the_queue",
    "a_fitting_workload_passes_a_larger_one",
    "a_missing_command_without_a_shell_does_not_start",
    "a_workload_without_its_queue_is_pending",
}


@pytest.fixture(scope="module")
def side_by_side(request: pytest.FixtureRequest, place: Place) -> Iterator[SideBySide]:
    """Run the chosen cases on the cluster; no other test runs at the same time, so they can use the spare slice."""
    provider = KindProvider(place.folder / "state")
    target, cases = provider.target(place.cluster), selected(request)
    # One for each, because the reads of a connection are paced; here, because pytest changes os.environ while threads
    # run, and the client reads it.
    connections = {str(case): provider.connect(place.cluster) for case in cases}

    def run(case: Case) -> None:
        api = connections[str(case)]
        namespace = f"case-{uuid.uuid4().hex[:8]}"
        ground = Ground(api=api, target=target, namespace=namespace, neighbor=f"{namespace}-2", patience=4)
        both = (ground.namespace, ground.neighbor)
        for name in both:
            api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        ground.set_up(case.slices)
        try:
            case.check(ground)
        finally:
            ground.clear()
            for kind in ("ClusterQueue", "Namespace"):
                for name in both:
                    with suppress(NotFoundError):
                        api.delete(kind, name)

    running = SideBySide(cases, SLICES + SPARE_SLICES, run)
    yield running
    running.close()


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.extended] if str(case) in EXTENDED else [], id=str(case)) for case in CASES],
)
def test_behavior(side_by_side: SideBySide, case: Case) -> None:
    side_by_side.result(case)
