"""Restarts of single slices: which JobSets have them, and which of these continue without a slice. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from xpk.api.base import Obj
from xpk.api.paths import container_of
from xpk_shared.supervisor.names import SLICE_ATTEMPT

_ACTIONS = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")  # of JobSet's failure policy


def restarts_slices(jobset: Obj) -> bool:
    """Return whether a JobSet creates the pods of a failed slice again without those of other slices."""
    rules = (jobset["spec"].get("failurePolicy") or {}).get("rules") or []
    return any(rule.get("action") in _ACTIONS for rule in rules)


def has_elastic_slices(jobset: Obj) -> bool:
    """Return whether a JobSet restarts single slices while the others continue, instead of waiting for them."""
    return restarts_slices(jobset) and next(variables(jobset, SLICE_ATTEMPT), None) is None


def variables(jobset: Obj, name: str) -> Iterator[Obj]:
    """Yield an environment variable of each container with the user's program that has it."""
    for job in jobset["spec"].get("replicatedJobs") or []:
        template = job["template"]["spec"]["template"]
        program = container_of({"metadata": template.get("metadata") or {}, "spec": template["spec"]})
        for container in template["spec"].get("containers") or []:
            if container.get("name") == program:
                yield from (item for item in container.get("env") or [] if item.get("name") == name)
