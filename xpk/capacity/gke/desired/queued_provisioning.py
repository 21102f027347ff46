"""Node pools with queued provisioning: all or none of a type, since its workloads make equal requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xpk.model.errors import ConflictError
from xpk.model.specs import ClusterSpec


def is_queued(pool: Mapping[str, Any]) -> bool:
    """Return whether a node pool's nodes are created when a ProvisioningRequest is granted."""
    return bool(pool.get("queued_provisioning", {}).get("enabled"))


def check_alike(spec: ClusterSpec, slices: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConflictError if existing slices of a type are provisioned differently from the requested ones."""
    for name, pool in slices.items():
        if pool.get("status") != "STOPPING" and is_queued(pool) != spec.queued:
            preposition = "with" if is_queued(pool) else "without"
            raise ConflictError(
                f"slice {name} was created {preposition} --queued-provisioning, and all slices of "
                f"{spec.shape.name} must match",
                hint="use the same option, another type, or another cluster",
            )
