"""Paths, queries and access reviews of API requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from xpk.api.base import In, NotIn, Obj, Selector
from xpk.api.kinds import EVERY_KIND as KINDS
from xpk.api.kinds import Kind
from xpk.model.errors import MissingToolError

_OURS = "host"  # the container's name in all of xpk's pods
_DEFAULT = "kubectl.kubernetes.io/default-container"
_ADDED = "-sidecar"  # end of the names of containers that clusters add to pods


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


def _terms(key: str, value: str | In | NotIn) -> Iterator[str]:
    """Yield the terms for a value; a field, unlike a label, has no `notin`, and no `In`."""
    if isinstance(value, NotIn):
        yield from (f"{key}!={other}" for other in value.values)
    elif isinstance(value, In):
        yield f"{key} in ({','.join(value.values)})"
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
    """Return a pod's container with the user's program: xpk's, else kubectl's default, else the first.

    Containers that a cluster adds, such as `gke-gcsfuse-sidecar`, may come before it.
    """
    containers = _containers(pod)
    if _OURS in containers or not containers:
        return _OURS
    annotation = (pod["metadata"].get("annotations") or {}).get(_DEFAULT)
    own = next((name for name in containers if not name.endswith(_ADDED)), containers[0])
    return annotation if annotation in containers else own


def programs_of(pod: Obj) -> list[Obj]:
    """Return a pod once for each container with the user's program, so that `container_of` returns that container.

    Google's xpk and gcluster start the program in several containers of a TPU7x host: NAME-1, NAME-2.
    """
    first = container_of(pod)
    if not first.endswith("-1"):
        return [pod]
    numbered = re.compile(re.escape(first.removesuffix("1")) + "[0-9]+")
    parallel = [container for container in _containers(pod) if numbered.fullmatch(container)]
    if len(parallel) < 2:
        return [pod]
    meta = pod["metadata"]
    return [
        {**pod, "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), _DEFAULT: container}}}
        for container in parallel
    ]


def _containers(pod: Obj) -> list[str]:
    return [str(container.get("name", "")) for container in pod.get("spec", {}).get("containers") or []]
