"""The status of Kueue's Workloads, changed in place of the controllers of their jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from xpk.api.base import Obj, ObjectApi
from xpk.model.errors import NotFoundError, XpkError


def conditions_of(obj: Obj) -> dict[str, str]:
    """Return the status of each condition of an object, by its type."""
    return {item["type"]: item["status"] for item in obj.get("status", {}).get("conditions") or []}


def with_conditions(obj: Obj, **changes: tuple[str, str]) -> list[Obj]:
    """Return an object's conditions with another status and reason for some types."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = [item for item in obj["status"].get("conditions") or [] if item["type"] not in changes]
    return kept + [
        {"type": kind, "status": status, "reason": reason, "message": "set without a job", "lastTransitionTime": now}
        for kind, (status, reason) in changes.items()
    ]


def released(obj: Obj) -> Obj | None:
    """Return the status of a preempted Workload without its quota, None if it has none or is not preempted.

    The controller of a job releases the quota once all pods have ended.
    """
    conditions = conditions_of(obj)
    if conditions.get("Evicted") != "True" or conditions.get("QuotaReserved") != "True":
        return None
    changed = with_conditions(obj, QuotaReserved=("False", "Pending"), Admitted=("False", "NoReservation"))
    return {"admission": None, "conditions": changed}


def change_status(api: ObjectApi, name: str, change: Callable[[Obj], Obj | None], *, tries: int | None = None) -> bool:
    """Change the status of a Workload, as it is now; return whether `change` returned one.

    Tries again if the Workload was changed meanwhile. Raises TimeoutError after `tries`, NotFoundError.
    """
    number = 0
    while tries is None or number < tries:
        number += 1
        try:
            obj = api.get("Workload", name)
            status = change(obj)
            if status is None:
                return False
            version = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            api.patch("Workload", f"{name}/status", {"metadata": version, "status": status})
            return True
        except NotFoundError:
            raise
        except XpkError:  # modified concurrently
            continue
    raise TimeoutError(f"workload {name} is modified all the time")
