"""Capacity types of slices: on demand, spot, flex-start, or a reservation. Pure.

A capacity is written like its flag: `spot` for --spot, `reservation=R` for --reservation R.
"""

from __future__ import annotations

import re

ON_DEMAND, SPOT, FLEX = "on-demand", "spot", "flex"
RESERVATION = re.compile(
    r"(projects/[^/]+/reservations/)?[a-z0-9-]+(/reservationBlocks/[^/]+(/reservationSubBlocks/[^/]+)?)?"
)
_RESERVED = "reservation="
_LABELS = "cloud.google.com/"


def reserved(reservation: str) -> str:
    """Return the capacity of a reservation: its name, or its path if it belongs to another project."""
    return f"{_RESERVED}{reservation}"


def flag_of(capacity: str) -> str:
    """Return the flag that requests a capacity."""
    return f"--{capacity}"


def is_same(one: str, other: str) -> bool:
    """Return whether two capacities are the same; a reservation's project and block are optional."""
    if not (one.startswith(_RESERVED) and other.startswith(_RESERVED)):
        return one == other
    (project, name), (other_project, other_name) = _parts(one), _parts(other)
    return name == other_name and (project == other_project or "" in (project, other_project))


def node_selector(capacity: str) -> dict[str, str]:
    """Return the labels by which pods request a capacity from node autoprovisioning.

    They are those of Google's xpk, with two exceptions: a reservation of another project, whose path is not a valid
    label value, and flex-start without a queue, where pods with `gke-queued` would wait for a ProvisioningRequest.
    """
    if capacity == SPOT:
        return {f"{_LABELS}gke-spot": "true"}
    if capacity == FLEX:
        return {f"{_LABELS}gke-flex-start": "true"}
    if capacity.startswith(_RESERVED):
        project, name = _parts(capacity)
        of_project = {f"{_LABELS}reservation-project": project} if project else {}
        return {f"{_LABELS}reservation-name": name, **of_project}
    return {}


def tolerated(capacity: str) -> dict[str, str]:
    """Return the taints of nodes of a capacity, which its pods have to tolerate."""
    return {f"{_LABELS}gke-spot": "true"} if capacity == SPOT else {}


def _parts(capacity: str) -> tuple[str, str]:
    """Return a reservation's project ("" if it is the cluster's) and its name."""
    path = capacity.removeprefix(_RESERVED).split("/")
    return (path[1], path[3]) if path[0] == "projects" else ("", path[0])
