"""Options of `cluster adapt` for a GKE cluster: expected slices and requested add-ons. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from xpk.api.text import counted as counted_words
from xpk.capacity.gke.desired import request_bodies
from xpk.capacity.gke.observed.state import Observed
from xpk.capacity.gke.planning.difference import Change, cluster_changes
from xpk.capacity.gke.request.options import GkeOptions
from xpk.model.errors import UsageError
from xpk.model.specs import ClusterSpec

_PARTS = ("workload_identity_config", "addons_config")  # fields that can be added to an existing cluster


def addon_changes(name: str, request: GkeOptions, have: Observed) -> list[Change]:
    """Return the changes that enable the requested add-ons."""
    bodies = {part: body for part, body in request_bodies.changeable(request).items() if part in _PARTS}
    if have.guess:
        return [Change("update-cluster", part, {"name": name, part: body}) for part, body in bodies.items()]
    return cluster_changes(have, {"name": name, "locations": [request.zone]}, bodies)


def difference(stated: ClusterSpec, counted: bool, specs: Sequence[ClusterSpec]) -> tuple[str, ...]:
    """Return how the existing slices differ from the stated ones; `counted`: compare their numbers too.

    Raises UsageError if there is none of the type.
    """
    counts = {spec.shape: spec.num_slices for spec in specs}
    if stated.shape not in counts:
        types = ", ".join(shape.name for shape in counts) or "none"
        raise UsageError(
            f"cluster '{stated.name}' has no slices of {stated.shape.name}; it has: {types}",
            hint="omit --tpu-type: the existing slices are counted",
        )
    if counted and counts[stated.shape] != stated.num_slices:
        count = counts[stated.shape]
        what = f"{counted_words(count, 'slice')} of {stated.shape.name} {'was' if count == 1 else 'were'} found"
        return (f"{what}; {stated.num_slices} were expected",)
    return ()
