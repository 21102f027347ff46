"""Elastic slices: how their JobSet restarts them, and the variables from which the trainer knows them."""

from __future__ import annotations

from xpk.model.specs import WorkloadSpec
from xpk_shared.supervisor.names import MIN_SLICES, REGISTRY

_REGISTRY_OFFSET = 3  # from the coordinator's port; the trainer and the supervisor use those between


def restart_policy(spec: WorkloadSpec) -> dict[str, str]:
    """Return how a JobSet restarts: its strategy, its action for uncounted restarts, and the field of the attempt.

    A slice whose old hosts cannot be deleted, because their node is dead, must not delay others that restart alone.
    """
    prefix = "metadata.labels['jobset.sigs.k8s.io/"
    if spec.min_slices:
        return {
            "strategy": "Recreate",
            "uncounted": "RestartJobAndIgnoreMaxRestarts",
            "attempt": f"{prefix}job-restart-attempt']",
        }
    return {
        "strategy": "BlockingRecreate",
        "uncounted": "RestartJobSetAndIgnoreMaxRestarts",
        "attempt": f"{prefix}restart-attempt']",
    }


def elastic_values(spec: WorkloadSpec, coordinator: str, port: int) -> dict[str, str]:
    """Return the variables of elastic slices; none for others. `coordinator` is slice 0 host 0, with its port."""
    if not spec.min_slices:
        return {}
    return {MIN_SLICES: str(spec.min_slices), REGISTRY: f"{coordinator}:{port + _REGISTRY_OFFSET}"}
