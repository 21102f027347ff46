"""Kubernetes quantities."""

from __future__ import annotations

import math
from functools import lru_cache

from xpk.api.base import Obj
from xpk.model.errors import UsageError

_UNITS = {
    **{"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60},
    **{"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18},
}


def quantity(text: object) -> float:
    """Return a quantity, such as `4`, `500m` or `16Gi`, as a number. Raises UsageError."""
    return _parsed(str(text))


@lru_cache(maxsize=1024)  # the hosts of a cluster have few different ones
def _parsed(value: str) -> float:
    unit = next((unit for unit in _UNITS if value.endswith(unit)), "")
    try:
        number = float(value[: len(value) - len(unit)]) * _UNITS.get(unit, 1)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"'{value}' is not a quantity", hint="`kubectl get nodes,clusterqueues -o yaml` shows it")
    return number


def requests(pod_spec: Obj) -> dict[str, float]:
    """Return the resource requests of one pod; a limit without a request counts as one."""
    amounts: dict[str, float] = {}
    for container in pod_spec.get("containers", []):
        resources = container.get("resources", {})
        for name, amount in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            amounts[name] = amounts.get(name, 0) + quantity(amount)
    return amounts
