"""Resource names of clusters, node pools and operations in requests, and their links."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from tools.gke_emulator.refusal import Refusal

_CONTAINER = "https://container.googleapis.com/v1"
COMPUTE = "https://www.googleapis.com/compute/v1"
_FIELDS = {"projects": "project", "locations": "location", "clusters": "cluster", "nodePools": "pool",
           "operations": "operation"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a request; parts that it does not name are empty."""

    project: str = ""
    location: str = ""
    cluster: str = ""
    pool: str = ""
    operation: str = ""

    @property
    def path(self) -> str:
        """Return the full resource name."""
        named = ((word, getattr(self, field)) for word, field in _FIELDS.items())
        return "/".join(f"{word}/{value}" for word, value in named if value)

    @property
    def link(self) -> str:
        """Return the server's URI; zonal locations are under `zones/`, as in GKE."""
        path = self.path
        return f"{_CONTAINER}/{path.replace('/locations/', '/zones/', 1) if is_zone(self.location) else path}"

    @property
    def of_cluster(self) -> Target:
        """Return the cluster to which this belongs."""
        return replace(self, pool="", operation="")


def is_zone(location: str) -> bool:
    """Return whether a location is a zone (us-east5-b), not a region (us-east5)."""
    return location.count("-") == 2


def region_of(location: str) -> str:
    """Return the region of a zone or region."""
    return location.rsplit("-", 1)[0] if is_zone(location) else location


def target_of(request: Any, *parts: str) -> Target:
    """Read what a request names, by `name` or `parent`, else by the deprecated fields of their own.

    Raises:
        Refusal: INVALID_ARGUMENT if something of `wanted` is missing or the name has another form.
    """
    text = getattr(request, "name", "") or getattr(request, "parent", "")
    target = _parsed(text) if text else _deprecated(request)
    for field in parts:
        if not getattr(target, field):
            raise Refusal.invalid(f"'{_kind(field)}' must be specified.")
    return target


def _parsed(text: str) -> Target:
    words = text.split("/")
    if len(words) % 2 or any(word not in _FIELDS for word in words[::2]) or not all(words):
        raise Refusal.invalid(f'Invalid resource name "{text}".')
    return Target(**{_FIELDS[word]: value for word, value in zip(words[::2], words[1::2], strict=True)})


def _deprecated(request: Any) -> Target:
    return Target(
        project=getattr(request, "project_id", ""),
        location=getattr(request, "zone", ""),
        cluster=getattr(request, "cluster_id", ""),
        pool=getattr(request, "node_pool_id", ""),
        operation=getattr(request, "operation_id", ""),
    )


def _kind(field: str) -> str:
    return {"project": "project_id", "location": "location", "cluster": "cluster_id", "pool": "node_pool_id",
            "operation": "operation_id"}[field]  # fmt: skip


def check_name(kind: str, name: str, longest: int = 40) -> None:
    """Reject a name that GKE rejects: lower case, digits and hyphens, at most `longest` characters."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > longest:
        raise Refusal.invalid(
            f'Invalid value for field "{kind}.name": "{name}". Must be a match of regex '
            f"'(?:[a-z](?:[-a-z0-9]{{0,{longest - 2}}}[a-z0-9])?)'."
        )
