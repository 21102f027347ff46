"""Errors for responses that are not 2xx. Pure: status codes and bodies in, XpkErrors out."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from xpk.api.base import Obj
from xpk.api.kinds import EVERY_KIND
from xpk.api.text import short
from xpk.model.errors import (
    AuthorizationError,
    ConflictError,
    MissingToolError,
    Modified,
    NameTaken,
    NotAuthorized,
    NotFoundError,
    ProtectedError,
    QuotaExceeded,
    UnavailableError,
    UsageError,
    XpkError,
)
from xpk.model.terminal import printable

_CONTROLLERS = {"jobset.x-k8s.io": "JobSet", "kueue.x-k8s.io": "Kueue"}
_NAMESPACES = {"JobSet": "jobset-system", "Kueue": "kueue-system"}
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
_OBJECT_MISSING = re.compile(r'^\S+ "[^"]*" not found$')
_NO_NAMESPACE = re.compile(r'^namespaces "([^"]*)" not found$')
_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
_WEBHOOK_DENIES = re.compile(r'admission webhook "(?P<hook>[^"]*)" denied the request: ?(?P<why>.*)', re.DOTALL)
_WEBHOOK_FAILS = re.compile(r'failed calling webhook "(?P<hook>[^"]*)": ?(?P<why>.*)', re.DOTALL)
_SERVICE = re.compile(r'https://[^./"]+\.(?P<namespace>[^./"]+)\.svc')
_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]*)"')
_NOT_STARTED = re.compile(r'container "[^"]*" in pod "[^"]*" is (?:waiting to start|not available|terminated)')
_STORE = ("database space exceeded", "etcdserver: no space")
_LONGEST = 2000  # shown characters of a server's message
_PERMISSIONS = "`xpk docs permissions` lists the required roles"


class GoneError(XpkError):
    """The resource version of a watch, or the continue token of a list, has expired on the server."""


class NotStartedError(ConflictError):
    """A container has no log because it has not started."""


def explain(status: int, body: object, method: str, path: str, about: Obj | None = None) -> XpkError:
    """Return the error for a response that is not 2xx.

    `body`: the response (text or bytes, usually a `Status` object); `path`: the requested path;
    `about`: the object that was sent.
    """
    answer = _answer(body)
    message = printable(str(answer.get("message") or "").strip(), limit=_LONGEST) or f"HTTP {status}"
    subject = f"{about['kind']} '{about['metadata'].get('name', '')}'" if about else _subject(path)
    if status == 401:
        return AuthorizationError(
            f"invalid credentials: the cluster rejected them ({message})",
            hint="log in again, they may have expired; `kubectl auth whoami` shows your user",
        )
    if status == 403:
        return _forbidden(message, method, path, subject)
    if status == 404:
        return _absent(message, path, subject)
    if status == 409:
        return _conflict(answer, message, subject)
    if status == 410:
        return GoneError(f"{subject} is gone: {message}", hint="try again")
    if status == 429 and (why := budget_of(body)):
        return ProtectedError(f"{subject} cannot be evicted now: {why}", hint="`kubectl get pdb -A` shows the budgets")
    if status in (400, 422):
        return _refused(message, subject, about)
    if status in (408, 504):
        doubt = "; the request may have been carried out" if method == "POST" else ""
        return UnavailableError(f"the cluster timed out on {subject}: {message}{doubt}", hint="try again")
    return _failed(message, subject)


def other_version(group: str, version: str, served: list[str]) -> MissingToolError:
    """Return the error for a controller whose installed version does not serve these objects."""
    name = _CONTROLLERS.get(group, group)
    return MissingToolError(
        f"{name} on this cluster has another version: it serves {', '.join(served)}, and {version} is needed",
        hint="`xpk cluster adapt CLUSTER` upgrades it",
    )


def budget_of(body: object) -> str:
    """Return the message of the PodDisruptionBudget that forbids an eviction; "" for other causes."""
    answer = _answer(body)
    messages = [
        str(cause.get("message") or "") for cause in _causes(answer) if cause.get("reason") == "DisruptionBudget"
    ]
    return "; ".join(filter(None, messages)) or (str(answer.get("message") or "") if messages else "")


def is_unanswered_webhook(body: object) -> bool:
    """Return whether a webhook could not be called, as while its controller restarts. Nothing was stored then."""
    return bool(_WEBHOOK_FAILS.search(str(_answer(body).get("message") or "")))


def _forbidden(message: str, method: str, path: str, subject: str) -> XpkError:
    """Return the error for a 403, which is not always about the user's permissions."""
    if denied := _WEBHOOK_DENIES.search(message):
        return _denied(denied, subject)
    if "exceeded quota" in message:
        return QuotaExceeded(
            f"{subject} exceeds a quota of its namespace: {message}", hint="`kubectl describe quota`", resource=subject
        )
    if "PodSecurity" in message:
        return UsageError(
            f"the namespace's pod security refuses {subject}: {message}",
            hint="ask the cluster's owner for another namespace",
        )
    if "being terminated" in message:
        return ConflictError(f"the namespace of {subject} is being deleted", hint="wait, or choose another --namespace")
    match = _FORBIDDEN.search(message)
    if not match:
        verb, resource = _VERBS.get(method, method.lower()), _resource(path)
        return NotAuthorized(
            f"permission denied: cannot {verb} {resource}: {message}", hint=_PERMISSIONS, resource=resource
        )
    resource = ".".join(filter(None, (match["resource"], match["group"])))
    scope = f"in namespace '{match['namespace']}'" if match["namespace"] else "in the whole cluster"
    namespace_flag = f" --namespace {match['namespace']}" if match["namespace"] else ""
    return NotAuthorized(
        f"permission denied: user '{match['user']}' cannot {match['verb']} {resource} {scope}",
        hint=f"{_PERMISSIONS}; `kubectl auth can-i {match['verb']} {resource}{namespace_flag}` checks again",
        resource=resource,
    )


def _absent(message: str, path: str, subject: str) -> XpkError:
    """Return the error for a 404: the object does not exist, or the server does not know the kind."""
    if match := _NO_NAMESPACE.match(message):
        return NotFoundError(
            f"namespace '{match[1]}' not found",
            hint=f"`kubectl create namespace {match[1]}`, or choose another --namespace",
        )
    group = path.split("/")[2] if path.startswith("/apis/") else ""
    controller = _CONTROLLERS.get(group)
    if controller and not _OBJECT_MISSING.match(message):
        return MissingToolError(
            f"{controller} is not installed on this cluster", hint="`xpk cluster adapt CLUSTER` installs it"
        )
    return NotFoundError(f"{subject} not found", hint="check the name and the namespace")


def _refused(message: str, subject: str, about: Obj | None) -> XpkError:
    if denied := _WEBHOOK_DENIES.search(message):
        return _denied(denied, subject)
    if _NOT_STARTED.search(message):
        return NotStartedError(f"{subject} has no log yet: {message}", hint="`xpk workload status` shows why")
    fields = _UNKNOWN_FIELD.findall(message)
    controller = _CONTROLLERS.get(str((about or {}).get("apiVersion", "")).partition("/")[0])
    if fields and controller:
        return MissingToolError(
            f"{controller} on this cluster is too old: it does not know {', '.join(fields[:3])}",
            hint="`xpk cluster adapt CLUSTER` upgrades it",
        )
    hint = "`--dry-run` shows the objects" if about else "check the request"
    return UsageError(f"the cluster refuses {subject}: {message}", hint=hint)


def _denied(match: re.Match[str], subject: str) -> XpkError:
    return UsageError(
        f"the cluster refuses {subject}: {match['why'].strip()} (webhook {match['hook']})",
        hint="`--dry-run` shows the objects",
    )


def _cause(why: str) -> str:
    """Return why a webhook could not be called, without its address."""
    return short(why.rpartition('": ')[2], 160)


def _failed(message: str, subject: str) -> XpkError:
    """Return the error for an internal error of the server."""
    if match := _WEBHOOK_FAILS.search(message):
        place = _SERVICE.search(match["why"])
        namespace = place["namespace"] if place else next((n for n in _NAMESPACES.values() if n[:-7] in message), "")
        name = next((name for name, where in _NAMESPACES.items() if where == namespace), match["hook"])
        return MissingToolError(
            f"{name} does not answer, so the cluster cannot accept {subject}: {_cause(match['why'])}",
            hint=f"`kubectl get pods --namespace {namespace}` shows its controller"
            if namespace
            else "`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations` lists the webhooks",
        )
    if any(text in message for text in _STORE):
        return XpkError(
            f"the cluster's store (etcd) is full and rejects writes ({message})",
            hint="ask its owner to compact and defragment etcd, then to disarm the alarm",
        )
    return UnavailableError(
        f"the cluster failed on {subject}: {message}",
        hint="try again; `kubectl get --raw /readyz?verbose` shows its health",
    )


def _conflict(answer: dict[str, Any], message: str, subject: str) -> XpkError:
    if answer.get("reason") == "AlreadyExists":
        return NameTaken(f"{subject} already exists", hint="choose another name, or delete it first", resource=subject)
    fields = [str(cause.get("field")) for cause in _causes(answer) if cause.get("reason") == "FieldManagerConflict"]
    if fields:
        return ConflictError(
            f"{subject} has fields that another manager owns: {', '.join(fields[:4])} ({message})",
            hint="omit them, or take them over with `kubectl apply --server-side --force-conflicts`",
        )
    return Modified(f"{subject} was modified concurrently: {message}", hint="try again", resource=subject)


def _subject(path: str) -> str:
    """Return the object that a path names: `Pod 'x'`, or the plural for several."""
    parts = _parts(path)
    kind = next((kind.name for kind in EVERY_KIND.values() if parts and kind.plural == parts[0]), "")
    return f"{kind} '{parts[1]}'" if kind and len(parts) > 1 else _resource(path)


def _resource(path: str) -> str:
    """Return the plural in a path, with its group."""
    split = path.strip("/").split("/")
    group, parts = ("" if split[0] == "api" else split[1]), _parts(path)
    return ".".join(filter(None, [parts[0] if parts else "", group]))


def _parts(path: str) -> list[str]:
    """Return the segments of a path, starting with the plural."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    return rest[2:] if rest[:1] == ["namespaces"] and len(rest) > 2 else rest


def _answer(body: object) -> dict[str, Any]:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    with suppress(ValueError, RecursionError):
        if isinstance(answer := json.loads(text), dict):
            return answer
    return {"message": "" if "\ufffd" in text else text[:300]}


def _causes(answer: dict[str, Any]) -> list[dict[str, Any]]:
    details = answer.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []
