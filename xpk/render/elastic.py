"""Restarts of slices by their JobSet, and the variables from which programs know elastic slices."""

from __future__ import annotations

from typing import Any

from xpk.model.specs import WorkloadSpec
from xpk_shared.supervisor.names import MIN_SLICES, REGISTRY, SLICE_ATTEMPT

_ATTEMPT = "XPK_RESTART_ATTEMPT"
_REGISTRY_OFFSET = 3  # from the coordinator's port; the trainer and the supervisor use those between


def restart_policy(spec: WorkloadSpec) -> dict[str, Any]:
    """Return how a JobSet restarts: its strategy, its actions, and the fields of the attempt by variable.

    A slice whose old hosts cannot be deleted, because their node is dead, must not delay others that restart alone.
    """
    of_jobset, of_slice = (
        f"metadata.labels['jobset.sigs.k8s.io/{label}']" for label in ("restart-attempt", "job-restart-attempt")
    )
    if spec.min_slices:
        return {
            "strategy": "Recreate",
            "uncounted": "RestartJobAndIgnoreMaxRestarts",
            "counted": "RestartJob",
            "attempts": {_ATTEMPT: of_slice},
        }
    return {
        "strategy": "BlockingRecreate",
        "uncounted": f"Restart{'Job' if spec.replaces_slices else 'JobSet'}AndIgnoreMaxRestarts",
        "counted": None,  # JobSet's default restarts all slices: what several slices have in common counts once
        "attempts": {_ATTEMPT: of_jobset, **({SLICE_ATTEMPT: of_slice} if spec.replaces_slices else {})},
    }


def elastic_values(spec: WorkloadSpec, coordinator: str, port: int) -> dict[str, str]:
    """Return the variables of elastic slices; none for others. `coordinator` is slice 0 host 0, with its port."""
    if not spec.min_slices:
        return {}
    return {MIN_SLICES: str(spec.min_slices), REGISTRY: f"{coordinator}:{port + _REGISTRY_OFFSET}"}
