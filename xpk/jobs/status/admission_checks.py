"""Admission checks that a workload waits for after its quota is reserved, such as GKE's provisioning of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from xpk.api.base import Obj
from xpk.api.text import short
from xpk.jobs.status.fields import condition
from xpk.jobs.status.slices import unformed
from xpk.model import names
from xpk.model.status import Check

_READY, _RETRY = "Ready", "Retry"
_LENGTH = 300
# In Kueue's conditions: AdmissionCheck in Rejected state: "dws-prov" (what the autoscaler said)
_VERDICT = re.compile(r'AdmissionChecks? in (?P<state>\w+) state: "(?P<name>[^"]+)"(?: \((?P<message>.*)\))?')
_OUTCOMES = {
    names.PROVISIONING_CHECK: "GKE created no nodes: {}",
    names.SLICE_CHECK: "GKE formed no slices: {}",
}
_RETRYING = re.compile(r"Retrying after (failure|booking expired): ")


def checks_of(workload: Obj | None) -> tuple[Check, ...]:
    """Return a workload's admission checks."""
    status = (workload or {}).get("status", {})
    retry_time = (status.get("requeueState") or {}).get("requeueAt")
    return tuple(
        Check(
            name=str(item["name"]),
            state=str(item.get("state", "")),
            message=str(item.get("message", "")),
            failures=int(item.get("retryCount") or 0),
            next_attempt=None if retry_time is None else str(retry_time),
        )
        for item in status.get("admissionChecks") or []
    )


def pending_checks_reason(workload: Obj, slices: Iterable[Obj] = ()) -> str:
    """Return the pending checks of a workload with reserved quota, in words; "" if none is pending.

    `slices`: those that GKE forms for it.
    """
    waiting = unformed(slices)
    return "; ".join(_words(check, waiting) for check in checks_of(workload) if check.state != _READY)


def eviction_reason(workload: Obj) -> str:
    """Return the message of a check that evicted a workload, and the time of the next attempt; "" if none did."""
    verdict = _verdict(workload)
    if verdict is None or condition(workload, "Evicted").get("reason") != "AdmissionCheck":
        return ""
    check = next((candidate for candidate in checks_of(workload) if candidate.name == verdict["name"]), None)
    failures, retry_time = (check.failures, check.next_attempt) if check else (0, None)
    return _retry_text(verdict["name"], verdict["message"], failures, retry_time)


def deactivation_reason(workload: Obj) -> str:
    """Return the message of a check that deactivated a workload; "" if none did."""
    verdict = _verdict(workload)
    if verdict is None or verdict["state"] != "Rejected":
        return ""
    return f"given up: {_said(verdict['name'], verdict['message'])} (admission check '{verdict['name']}' is Rejected)"


def _words(check: Check, unformed_slices: str) -> str:
    failed = f"; {_failed(check.failures)}" if check.failures else ""
    if check.state == _RETRY:  # the quota is not given back yet, and this attempt not counted
        return _retry_text(check.name, check.message, check.failures + 1, check.next_attempt)
    if check.name == names.SLICE_CHECK:
        message = unformed_slices or short(check.message, _LENGTH) or "no Slice exists yet"
        return f"waiting for GKE to form its slices: {message} (admission check '{check.name}' is {check.state})"
    if check.name != names.PROVISIONING_CHECK:
        return f"admission check '{check.name}' is {check.state}: {short(check.message)}".rstrip(": ") + failed
    # After an earlier attempt, Kueue's message only says that the check was reset.
    message = "" if check.message.startswith("Reset to Pending") else short(check.message, _LENGTH)
    message = message or "its ProvisioningRequest is pending"
    return f"waiting for GKE to create its nodes: {message} (admission check '{check.name}' is {check.state}{failed})"


def _retry_text(name: str, message: str | None, failures: int, retry_time: str | None) -> str:
    when = f"next attempt at {retry_time}" if retry_time else "next attempt soon"
    return f"{_said(name, message)} ({', '.join(filter(None, [_failed(failures), when]))})"


def _said(name: str, message: str | None) -> str:
    text = short(_RETRYING.sub("", message or ""), _LENGTH) or "no reason was given"
    return _OUTCOMES.get(name, f"admission check '{name}': {{}}").format(text)


def _failed(count: int) -> str:
    return f"{count} attempt{'s' if count > 1 else ''} failed" if count else ""


def _verdict(workload: Obj) -> re.Match[str] | None:
    for kind in ("DeactivationTarget", "Evicted"):
        verdict = condition(workload, kind)
        if verdict.get("status") == "True" and (match := _VERDICT.search(str(verdict.get("message", "")))):
            return match
    return None
