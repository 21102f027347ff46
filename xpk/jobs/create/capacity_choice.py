"""Capacity of a workload's slices: the one requested, and those that a cluster has or that GKE may add."""

from __future__ import annotations

from collections.abc import Sequence

from xpk.model import capacities
from xpk.model.errors import ConflictError, UsageError
from xpk.model.specs import Target


def capacity_of_flags(*, on_demand: bool, spot: bool, flex: bool, reservation: str | None) -> str | None:
    """Return the capacity that flags select, None without any. Raises UsageError."""
    flags = {capacities.ON_DEMAND: on_demand, capacities.SPOT: spot, capacities.FLEX: flex}
    requested = [capacity for capacity, is_given in flags.items() if is_given]
    if reservation is not None:
        if not capacities.RESERVATION.fullmatch(reservation):
            raise UsageError(
                f"--reservation '{reservation}' is neither a name nor projects/P/reservations/R",
                hint="pass the name of one reservation",
            )
        requested.append(capacities.reserved(reservation))
    if len(requested) > 1:
        raise UsageError(
            f"{' and '.join(map(capacities.flag_of, requested))} exclude each other", hint="pass one of them"
        )
    return requested[0] if requested else None


def checked(capacity: str | None) -> str | None:
    """Return a valid capacity unchanged. Raises UsageError for any other word."""
    kind, _, name = (capacity or "").partition("=")
    if capacity not in (None, capacities.ON_DEMAND, capacities.SPOT, capacities.FLEX) and not (
        kind == "reservation" and capacities.RESERVATION.fullmatch(name)
    ):
        raise UsageError(f"invalid capacity '{capacity}'", hint="use on-demand, spot, flex or reservation=NAME")
    return capacity


def choose(target: Target, kind: str, requested: str | None, *, cluster: str) -> str:
    """Return the capacity that pods must select, "" if all slices of a type have the requested one.

    `kind`: the accelerator type. Raises UsageError or ConflictError if the cluster does not have that capacity.
    """
    if kind in target.autoprovisioned:
        if requested and "/reservationBlocks/" in requested:
            raise UsageError(
                f"{capacities.flag_of(requested)}: GKE adds node pools of whole reservations only",
                hint="omit /reservationBlocks/...",
            )
        return requested or target.autoprovisioned[kind]
    if requested is None:
        return ""
    have = target.capacities.get(kind)
    if have is None:
        reason = (
            " is supported on GKE only"
            if target.region is None
            else f": the capacity of cluster '{cluster}' is not known"
        )
        raise UsageError(
            f"{capacities.flag_of(requested)}{reason}",
            hint=f"omit it{f', or run `xpk cluster adapt {cluster} --provider gke` first' if target.region else ''}",
        )
    if not all(capacities.is_same(requested, capacity) for capacity in have):
        raise ConflictError(
            f"the slices of {kind} of cluster '{cluster}' are {_listed(have)}, not "
            f"{capacities.flag_of(requested)}, and GKE does not add node pools",
            hint="omit it, or enable node pools: `xpk cluster create ... --enable-autoprovisioning`",
        )
    return ""


def _listed(have: Sequence[str]) -> str:
    return " and ".join(map(capacities.flag_of, have))
