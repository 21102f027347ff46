"""Available quota in a cohort, as Kueue computes it."""

from __future__ import annotations

import pytest

from xpk.model.quotas import Allotment, available, ceiling

OTHER = Allotment(nominal=4)


@pytest.mark.parametrize(
    ("own", "others", "free"),
    [
        (Allotment(nominal=8), [], 8),
        (Allotment(nominal=8, used=3), [], 5),
        (Allotment(nominal=8, used=10), [], -2),  # its quota was reduced
        (Allotment(nominal=8), [OTHER], 12),
        (Allotment(nominal=8), [Allotment(nominal=4, used=10)], 2),  # the other one has borrowed 6
        # It lends 2 and keeps 6, which it uses first.
        (Allotment(nominal=8, lending_limit=2), [OTHER], 12),
        (Allotment(nominal=8, lending_limit=2, used=3), [OTHER], 9),
        (Allotment(nominal=8, lending_limit=2, used=7), [OTHER], 5),
        (OTHER, [Allotment(nominal=8, lending_limit=2)], 6),
        (OTHER, [Allotment(nominal=8, lending_limit=2, used=5)], 6),
        (OTHER, [Allotment(nominal=8, lending_limit=2, used=7)], 5),
        (OTHER, [Allotment(nominal=8, lending_limit=10)], 12),
        (OTHER, [Allotment(nominal=8, lending_limit=0)], 4),
        # It borrows at most 1.
        (Allotment(nominal=8, borrowing_limit=1), [Allotment(nominal=8)], 9),
        (Allotment(nominal=8, borrowing_limit=1, used=9), [Allotment(nominal=8)], 0),
        (Allotment(nominal=8, borrowing_limit=100), [OTHER], 12),
        (Allotment(nominal=8, borrowing_limit=0), [OTHER], 8),
        (Allotment(nominal=8, borrowing_limit=1, lending_limit=2), [Allotment(nominal=8)], 9),
        (Allotment(nominal=8, borrowing_limit=1, lending_limit=2, used=5), [Allotment(nominal=8)], 4),
        (Allotment(nominal=8, borrowing_limit=1, lending_limit=2, used=7), [Allotment(nominal=8)], 2),
    ],
)
def test_a_queue_may_use_its_own_quota_and_what_others_lend(own: Allotment, others: list[Allotment], free: int) -> None:
    assert available(own, [own, *others]) == free


@pytest.mark.parametrize(
    ("own", "others", "most"),
    [
        (Allotment(nominal=8), [], 8),
        (Allotment(nominal=8, used=3), [Allotment(nominal=4, used=4)], 12),
        (Allotment(nominal=8, lending_limit=2), [OTHER], 12),
        (OTHER, [Allotment(nominal=8, lending_limit=2)], 6),
        (Allotment(nominal=8, borrowing_limit=1), [OTHER], 9),
        (Allotment(nominal=8, borrowing_limit=0), [OTHER], 8),
        (Allotment(nominal=8, borrowing_limit=100), [OTHER], 12),
    ],
)
def test_the_ceiling_of_a_queue_ignores_what_is_in_use(own: Allotment, others: list[Allotment], most: int) -> None:
    assert ceiling(own, [own, *others]) == most
