"""What an API server's refusals mean for a user. Pure: status codes and bodies in, our errors out."""

from __future__ import annotations

import json
import re
from typing import Any

from xpk.api.base import Obj
from xpk.model.errors import (
    AuthorizationError,
    ConflictError,
    MissingToolError,
    NotFoundError,
    TimedOutError,
    UsageError,
    XpkError,
)

_CONTROLLERS = {"jobset.x-k8s.io": "JobSet", "kueue.x-k8s.io": "Kueue"}
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
_OBJECT_MISSING = re.compile(r'^\S+ "[^"]*" not found$')


class GoneError(XpkError):
    """The server no longer knows the version that a watch wants to go on from."""


def explain(status: int, body: object, method: str, path: str, about: Obj | None = None) -> XpkError:
    """Return the error for an answer that is not 2xx.

    `body` is what the server sent (text or bytes, usually a `Status` object), `path` what was asked for,
    `about` the object that was sent.
    """
    answer = _answer(body)
    said = str(answer.get("message") or "").strip() or f"HTTP {status}"
    what = f"{about['kind']} '{about['metadata'].get('name', '')}'" if about else _resource(path)
    if status == 401:
        return AuthorizationError(
            f"not authorised: the cluster does not accept these credentials ({said})",
            hint="`xpk cluster kubeconfig` prints a fresh kubeconfig; `kubectl auth whoami` shows who you are",
        )
    if status == 403:
        verb, resource = _VERBS.get(method, method.lower()), _resource(path)
        return AuthorizationError(
            f"not authorised to {verb} {resource}: {said}",
            hint=f"ask the cluster's owner for the verb '{verb}' on {resource}; `kubectl auth can-i {verb} {resource}`",
        )
    if status == 404:
        return _absent(said, path, what)
    if status == 409:
        return _conflict(answer, said, what)
    if status == 410:
        return GoneError(said)
    if status in (400, 422):
        return UsageError(f"the cluster refuses {what}: {said}", hint="`--dry-run` shows what is sent")
    if status in (408, 504):
        return TimedOutError(f"the cluster took too long over {what}: {said}", hint="try again")
    return XpkError(
        f"the cluster failed over {what}: {said}",
        hint="try again; `kubectl get --raw /readyz?verbose` shows its health",
    )


def unreachable(message: str) -> XpkError:
    """Return the error for a server that does not answer."""
    return XpkError(message, hint="is the cluster up? `xpk cluster list`; `kubectl cluster-info` asks it directly")


def _absent(said: str, path: str, what: str) -> XpkError:
    """Tell an object that is not there from a kind that the server does not know."""
    group = path.split("/")[2] if path.startswith("/apis/") else ""
    controller = _CONTROLLERS.get(group)
    if controller and not _OBJECT_MISSING.match(said) and "namespaces" not in said:
        return MissingToolError(
            f"{controller} is not installed on this cluster", hint="`xpk cluster adapt CLUSTER` installs it"
        )
    return NotFoundError(f"there is no {what}: {said}", hint="check the name and the namespace")


def _conflict(answer: dict[str, Any], said: str, what: str) -> XpkError:
    if answer.get("reason") == "AlreadyExists":
        return ConflictError(f"{what} exists already", hint="choose another name, or delete it first")
    causes = answer.get("details", {}).get("causes") or []
    fields = [str(cause.get("field")) for cause in causes if cause.get("reason") == "FieldManagerConflict"]
    if fields:
        return ConflictError(
            f"{what} has fields that somebody else manages: {', '.join(fields[:4])} ({said})",
            hint="leave them out, or hand them over with `kubectl apply --server-side --force-conflicts`",
        )
    return ConflictError(f"{what} was changed by somebody else meanwhile: {said}", hint="try again")


def _resource(path: str) -> str:
    """Return the plural, with its group, that a path asks for."""
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return ".".join(filter(None, [rest[0] if rest else "", group]))


def _answer(body: object) -> dict[str, Any]:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        found = json.loads(text)
    except ValueError:
        return {"message": text[:300]}
    return found if isinstance(found, dict) else {"message": text[:300]}
