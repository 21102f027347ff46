"""Paths, queries and access reviews of API requests. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from xpk.api.base import NotIn, Obj, Selector
from xpk.api.kinds import EVERY_KIND as KINDS
from xpk.api.kinds import Kind
from xpk.model.errors import MissingToolError

_OURS = "host"  # the container's name in all of xpk's pods
_DEFAULT = "kubectl.kubernetes.io/default-container"


def kind_of(kind: str) -> Kind:
    """Return the definition of a kind. Raises MissingToolError for an unknown one."""
    if kind not in KINDS:
        raise MissingToolError(f"xpk does not handle objects of kind {kind}", hint="use kubectl for them")
    return KINDS[kind]


def path_of(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    """Return the path of an object, or of all objects of a kind; without a namespace, of all namespaces."""
    root = "/api" if kind.api_version == "v1" else "/apis"
    place = f"/namespaces/{namespace}" if kind.namespaced and namespace is not None else ""
    return f"{root}/{kind.api_version}{place}/{kind.plural}" + (f"/{name}" if name else "")


def dry(dry_run: bool, **query: str) -> dict[str, str]:
    """Return a query, for a dry run with `dryRun` set."""
    return query | ({"dryRun": "All"} if dry_run else {})


def selecting(selector: Selector | None, by: str = "labelSelector") -> dict[str, str]:
    """Return the query for objects with these values; without values, for all."""
    terms = [term for key, value in (selector or {}).items() for term in _terms(key, value)]
    return {by: ",".join(terms)} if terms else {}


def _terms(key: str, value: str | NotIn) -> Iterator[str]:
    """Yield the terms for a value; a field, unlike a label, has no `notin`."""
    if isinstance(value, NotIn):
        yield from (f"{key}!={other}" for other in value.values)
    else:
        yield f"{key}={value}"


def access_review(**attributes: str) -> Obj:
    """Return a SelfSubjectAccessReview for `verb` on `resource`, with a namespace where that matters."""
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }


def container_of(pod: Obj) -> str:
    """Return a pod's container with the user's program: xpk's, else kubectl's default container."""
    containers = [str(container.get("name", "")) for container in pod.get("spec", {}).get("containers") or []]
    if _OURS in containers or not containers:
        return _OURS
    annotation = (pod["metadata"].get("annotations") or {}).get(_DEFAULT)
    return annotation if annotation in containers else containers[0]
