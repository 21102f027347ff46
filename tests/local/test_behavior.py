"""The cases of behavior on the local control plane; e2e/test_kind_conformance.py runs them on real controllers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.case_environment import SHAPE, Case, Ground, SideBySide, selected
from tests.conformance.cases import CASES
from xpk.capacity.local.provider import LocalProvider
from xpk.model.specs import ClusterSpec

SLICES = 6


@pytest.fixture(scope="module")
def side_by_side(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SideBySide]:
    """Run the chosen cases on one cluster of processes."""
    provider = LocalProvider(tmp_path_factory.mktemp("state"))
    provider.plan_create(ClusterSpec(name="c", shape=SHAPE, num_slices=SLICES)).carry_out(lambda step: None)
    api, target = provider.connect("c"), provider.target("c")

    def run(item: Case) -> None:
        namespace = str(item).replace("_", "-")[:40]
        ground = Ground(api=api, target=target, namespace=namespace, neighbor=f"{namespace}-2")
        ground.set_up(item.slices)
        item.check(ground)
        ground.clear()

    running = SideBySide(selected(request), SLICES, run)
    yield running
    running.close()
    provider.plan_delete("c", force=True).carry_out(lambda step: None)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_behavior(side_by_side: SideBySide, case: Case) -> None:
    side_by_side.result(case)
