"""The cases of behaviour that the local control plane passes, on real pods under JobSet and Kueue.

eval "$(e2e/environment/up)" && .venv/bin/python -m pytest e2e/test_kind_conformance.py --timeout 900
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest

from e2e.place import SLICES, SPARE_SLICES, Place
from tests.conformance.cases import CASES
from tests.conformance.ground import Case, Ground, SideBySide, selected
from xpk.capacity.kind import KindProvider
from xpk.model.errors import NotFoundError


@pytest.fixture(scope="module")
def side_by_side(request: pytest.FixtureRequest, place: Place) -> Iterator[SideBySide]:
    """Run the chosen cases on the cluster: no other test runs meanwhile, so the spare slice is theirs too."""
    provider = KindProvider(place.folder / "state")
    target = provider.target(place.cluster)

    def run(each: Case) -> None:
        api = provider.connect(place.cluster)  # its own: a connection's reads are paced
        namespace = f"case-{uuid.uuid4().hex[:8]}"
        ground = Ground(api=api, target=target, namespace=namespace, neighbour=f"{namespace}-2", patience=4)
        both = (ground.namespace, ground.neighbour)
        for name in both:
            api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        ground.set_up(each.slices)
        try:
            each.check(ground)
        finally:
            ground.clear()
            for kind in ("ClusterQueue", "Namespace"):
                for name in both:
                    with suppress(NotFoundError):
                        api.delete(kind, name)

    running = SideBySide(selected(request), SLICES + SPARE_SLICES, run)
    yield running
    running.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_behaviour(side_by_side: SideBySide, case: Case) -> None:
    side_by_side.result(case)
