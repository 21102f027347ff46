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

# Each of these shows on pods what another case shows there too; on this machine all of them run with every change.
EXTENDED = {
    "a_command_that_may_not_be_run_is_fatal",
    "a_deleted_pod_that_does_not_end_is_killed",
    "a_slice_restarts_with_the_others",
    "beyond_its_quota_priority_decides",
    "one_slice_that_fails_ends_the_other",
    "queues_of_two_namespaces_share_a_quota",
    "restarts_come_to_an_end",
    "the_lowest_and_the_youngest_make_room",
    "the_queue_goes_by_priority_and_then_by_age",
    "what_is_deleted_in_the_queue_never_runs",
    "what_is_preempted_comes_back_by_itself",
    "what_is_suspended_leaves_the_queue",
    "who_fits_passes_who_does_not",
    "without_a_shell_a_command_that_is_not_there_does_not_start",
    "without_its_queue_a_workload_waits",
}


@pytest.fixture(scope="module")
def side_by_side(request: pytest.FixtureRequest, place: Place) -> Iterator[SideBySide]:
    """Run the chosen cases on the cluster: no other test runs meanwhile, so the spare slice is theirs too."""
    provider = KindProvider(place.folder / "state")
    target = provider.target(place.cluster)

    def run(case: Case) -> None:
        api = provider.connect(place.cluster)  # its own: a connection's reads are paced
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

    running = SideBySide(selected(request), SLICES + SPARE_SLICES, run)
    yield running
    running.close()


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.extended] if str(case) in EXTENDED else [], id=str(case)) for case in CASES],
)
def test_behavior(side_by_side: SideBySide, case: Case) -> None:
    side_by_side.result(case)
