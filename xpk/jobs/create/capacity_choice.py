"""The capacity that a workload's hosts ask for: which there is, and which GKE would make node pools of."""

from __future__ import annotations

from collections.abc import Sequence

from xpk.model import capacities
from xpk.model.errors import ConflictError, UsageError
from xpk.model.specs import Target


def asked_for(*, on_demand: bool, spot: bool, flex: bool, reservation: str | None) -> str | None:
    """Return the capacity that flags ask for, None without any. Raises UsageError."""
    given = {capacities.ON_DEMAND: on_demand, capacities.SPOT: spot, capacities.FLEX: flex}
    asked = [capacity for capacity, is_given in given.items() if is_given]
    if reservation is not None:
        if not capacities.RESERVATION.fullmatch(reservation):
            raise UsageError(
                f"--reservation '{reservation}' is neither a name nor projects/P/reservations/R",
                hint="a workload takes one reservation",
            )
        asked.append(capacities.reserved(reservation))
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(map(capacities.flag_of, asked))} exclude each other", hint="choose one")
    return asked[0] if asked else None


def checked(capacity: str | None) -> str | None:
    """Return a capacity as it is. Raises UsageError for a word that is none."""
    kind, _, name = (capacity or "").partition("=")
    if capacity not in (None, capacities.ON_DEMAND, capacities.SPOT, capacities.FLEX) and not (
        kind == "reservation" and capacities.RESERVATION.fullmatch(name)
    ):
        raise UsageError(f"invalid capacity '{capacity}'", hint="use on-demand, spot, flex or reservation=NAME")
    return capacity


def choose(target: Target, kind: str, asked: str | None, *, cluster: str) -> str:
    """Return the capacity that pods have to ask for, "" where all slices of a type have the one that is meant.

    `kind`: the type of slices. Raises UsageError or ConflictError where there is none of what was asked for.
    """
    if kind in target.autoprovisioned:
        if asked and "/reservationBlocks/" in asked:
            raise UsageError(
                f"{capacities.flag_of(asked)}: GKE makes node pools of whole reservations",
                hint="leave out /reservationBlocks/...",
            )
        return asked or target.autoprovisioned[kind]
    if asked is None:
        return ""
    have = target.capacities.get(kind)
    if have is None:
        where = "GKE; others have none to choose" if target.region is None else "clusters that say which they have"
        raise UsageError(
            f"{capacities.flag_of(asked)}: the capacity of slices is known of {where}",
            hint=f"leave it out{f', or `xpk cluster adapt {cluster} --provider gke` first' if target.region else ''}",
        )
    if not all(capacities.is_same(asked, each) for each in have):
        raise ConflictError(
            f"the slices of {kind} of cluster '{cluster}' are {_listed(have)}, not {capacities.flag_of(asked)}, and "
            "GKE makes no others there",
            hint="leave it out, or let GKE add node pools: `xpk cluster create ... --enable-autoprovisioning`",
        )
    return ""


def _listed(have: Sequence[str]) -> str:
    return " and ".join(map(capacities.flag_of, have))
