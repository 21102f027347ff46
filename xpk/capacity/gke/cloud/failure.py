"""Errors of Google Cloud as XpkErrors: the cause, and the next command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from xpk.model.errors import (
    AuthorizationError,
    CapacityError,
    ConflictError,
    NotFoundError,
    UsageError,
    XpkError,
)

_STOCKOUT = re.compile(
    r"GCE_STOCKOUT|RESOURCE_POOL_EXHAUSTED|does not have enough resources available|lack of capacity|stockout", re.I
)
_RESERVED = re.compile(r"[Rr]eservation '[^']*' does not have enough|reservation .*(exhausted|insufficient)")
_QUOTA = re.compile(r"QUOTA_EXCEEDED|quota '|insufficient (regional|project) quota|quota .* exceeded", re.I)
_RATE = re.compile(r"per minute|per 100 seconds|rate limit|requests per|concurrent operations|try again later", re.I)
_CROWDED = re.compile(r"concurrent operations quota", re.I)
_ADDRESSES = re.compile(r"IP_SPACE_EXHAUSTED|IP space .* exhausted", re.I)
_BUSY = re.compile(r"incompatible operation (operation-[\w-]+)")
_ZONE = re.compile(r"zones/([a-z0-9-]+)")
_LONGEST = 300  # shown characters of Google's message

AGAIN = "run the same command again: existing resources are kept"


def explained(code: str, text: str) -> XpkError:
    """Return the error for a canonical code (`RESOURCE_EXHAUSTED`, ...) and the server's message."""
    short = _short(text)
    if _ADDRESSES.search(text):
        return CapacityError(f"not enough IP addresses: {short}", hint="`xpk docs scale` shows the required ranges")
    if _RESERVED.search(text):
        return CapacityError(f"the reservation is full: {short}", hint="choose another --reservation, or fewer slices")
    if _STOCKOUT.search(text):
        zone = match[1] if (match := _ZONE.search(text)) else "the zone"
        return CapacityError(
            f"{zone} is out of stock (GCE_STOCKOUT, ZONE_RESOURCE_POOL_EXHAUSTED)",
            hint=f"{AGAIN}; or choose --spot, --flex, --reservation R, or another --zone under another name",
        )
    if _QUOTA.search(text) and not _RATE.search(text):
        return CapacityError(
            f"the project's quota is too small: {short}",
            hint="request more at https://console.cloud.google.com/iam-admin/quotas, then run the same command again",
        )
    if code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return AuthorizationError(
            f"permission denied by Google Cloud: {short}",
            hint="`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS; the account needs "
            "the role roles/container.admin",
        )
    if code == "NOT_FOUND":
        return NotFoundError(f"not found in Google Cloud: {short}", hint="`xpk cluster list --provider gke`")
    if code in ("ALREADY_EXISTS", "ABORTED"):
        return ConflictError(f"modified concurrently: {short}", hint=AGAIN)
    if code == "FAILED_PRECONDITION":
        return ConflictError(f"Google Cloud rejected the request for now: {short}", hint=AGAIN)
    if code == "INVALID_ARGUMENT":
        return UsageError(f"GKE rejected the request: {short}", hint="`--dry-run -o json` shows the request")
    if code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "INTERNAL"):
        return XpkError(f"unexpected response from Google Cloud ({code}): {short}", hint=AGAIN)
    return XpkError(f"{code}: {short}", hint=AGAIN)


def of_operation(operation: Mapping[str, Any]) -> XpkError | None:
    """Return the error of a failed operation, None if it succeeded."""
    error = operation.get("error") or {}
    conditions = [*operation.get("nodepool_conditions", ()), *operation.get("cluster_conditions", ())]
    # Conditions also describe lasting states: only with an error do they explain it.
    if not error.get("code") and not (conditions and operation.get("status_message")):
        return None
    codes = " ".join(str(condition.get("code", "")) for condition in conditions)
    text = str(error.get("message") or operation.get("status_message") or "no reason given")
    return explained(_NAMES.get(int(error.get("code", 2)), "UNKNOWN"), f"{text} {codes}".strip())


def of_compute(operation: Mapping[str, Any]) -> XpkError | None:
    """Return the error of a failed Compute Engine operation, None if it succeeded."""
    errors = (operation.get("error") or {}).get("errors") or []
    if not errors:
        return None
    return explained(str(errors[0].get("code", "UNKNOWN")), str(errors[0].get("message") or "no reason given"))


def blocker(text: str) -> str | None:
    """Return the operation that blocks a call, if the server's message names one."""
    match = _BUSY.search(text)
    return match[1] if match else None


def is_operation_limit(text: str) -> bool:
    """Return whether as many operations run on the cluster as GKE allows."""
    return bool(_CROWDED.search(text))


def is_passing(code: str, text: str) -> bool:
    """Return whether a retry may help soon."""
    if is_operation_limit(text):
        return False  # only once another operation has ended, which takes minutes
    if code in ("UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED", "INTERNAL"):
        return True
    return code == "RESOURCE_EXHAUSTED" and not (_QUOTA.search(text) and not _RATE.search(text))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


_NAMES = {  # google.rpc.Code
    1: "CANCELLED",
    2: "UNKNOWN",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    16: "UNAUTHENTICATED",
}
