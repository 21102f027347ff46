"""The capacity that hosts request, from the record of their cluster."""

from __future__ import annotations

from typing import Any

import pytest

from xpk.jobs.create.capacity_choice import capacity_of_flags, choose
from xpk.model.errors import UsageError, XpkError
from xpk.model.specs import Target

KIND = "v5litepod-16"
NONE: dict[str, Any] = {"on_demand": False, "spot": False, "flex": False, "reservation": None}


def target(*have: str, makes: str = "", region: str | None = "us-central1") -> Target:
    return Target(
        emulated=False,
        sets_slice_environment=False,
        output_root="gs://b",
        region=region,
        capacities={KIND: have} if have else {},
        autoprovisioned={KIND: makes} if makes else {},
    )


def test_flags_select_one_capacity() -> None:
    assert capacity_of_flags(**NONE) is None
    assert capacity_of_flags(**NONE | {"flex": True}) == "flex"
    assert (
        capacity_of_flags(**NONE | {"reservation": "projects/p/reservations/r"})
        == "reservation=projects/p/reservations/r"
    )
    with pytest.raises(UsageError, match="--on-demand and --reservation=r exclude each other"):
        capacity_of_flags(**NONE | {"on_demand": True, "reservation": "r"})
    for wrong in ("", "R!", "a,b"):
        with pytest.raises(UsageError, match="is neither a name nor"):
            capacity_of_flags(**NONE | {"reservation": wrong})


@pytest.mark.parametrize(
    ("have", "asked", "chosen"),
    [
        (target("spot"), None, ""),
        (target("spot"), "spot", ""),
        (target("reservation=r"), "reservation=projects/p/reservations/r", ""),
        (target("spot", makes="spot"), None, "spot"),
        (target("spot", makes="spot"), "on-demand", "on-demand"),
        (target(makes="reservation=r"), None, "reservation=r"),
        (target("on-demand", makes="on-demand"), "reservation=r", "reservation=r"),
        (target(region=None), None, ""),
    ],
)
def test_capacity_becomes_node_selectors_of_pods(have: Target, asked: str | None, chosen: str) -> None:
    assert choose(have, KIND, asked, cluster="c") == chosen


@pytest.mark.parametrize(
    ("have", "asked", "why"),
    [
        (target("on-demand"), "spot", "slices of v5litepod-16 of cluster 'c' are --on-demand, not --spot"),
        (target("on-demand", "spot"), "spot", "are --on-demand and --spot, not --spot"),
        (target("reservation=r"), "reservation=other", "are --reservation=r, not --reservation=other"),
        (
            target("reservation=projects/p/reservations/r"),
            "reservation=projects/q/reservations/r",
            "are --reservation=projects/p/reservations/r",
        ),
        (target(), "spot", "--spot: the capacity of cluster 'c' is not known"),
        (target(region=None), "spot", "is supported on GKE only"),
        (target(makes="spot"), "reservation=r/reservationBlocks/b", "GKE adds node pools of whole reservations only"),
    ],
)
def test_unavailable_capacity_is_rejected(have: Target, asked: str, why: str) -> None:
    with pytest.raises(XpkError) as caught:
        choose(have, KIND, asked, cluster="c")
    assert why in caught.value.message and caught.value.hint
