"""How the API of a server is asked for objects: paths, queries, and what one may do. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from xpk.api.base import Obj
from xpk.api.kinds import EVERY_KIND as KINDS
from xpk.api.kinds import Kind
from xpk.model.errors import MissingToolError

_OURS = "host"  # its name in all that xpk makes
_DEFAULT = "kubectl.kubernetes.io/default-container"


def kind_of(kind: str) -> Kind:
    """Return what is known of a kind. Raises MissingToolError if that is nothing."""
    if kind not in KINDS:
        raise MissingToolError(f"xpk does not handle objects of kind {kind}", hint="use kubectl for them")
    return KINDS[kind]


def path_of(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    """Return the path of an object, or of all of a kind; of all namespaces without one."""
    root = "/api" if kind.api_version == "v1" else "/apis"
    place = f"/namespaces/{namespace}" if kind.namespaced and namespace is not None else ""
    return f"{root}/{kind.api_version}{place}/{kind.plural}" + (f"/{name}" if name else "")


def dry(dry_run: bool, **query: str) -> dict[str, str]:
    """Return a query that, for a dry run, only asks what would be."""
    return query | ({"dryRun": "All"} if dry_run else {})


def selecting(selector: Mapping[str, str] | None, by: str = "labelSelector") -> dict[str, str]:
    """Return the query for objects that have these values; none for all."""
    return {by: ",".join(f"{key}={value}" for key, value in selector.items())} if selector else {}


def access_review(**attributes: str) -> Obj:
    """Return the question whether this user may do something: `verb`, `resource`, and where that matters more."""
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }


def container_of(pod: Obj) -> str:
    """Return the container of a pod in which the user's program runs: ours, else the one that kubectl would take."""
    there = [str(container["name"]) for container in pod.get("spec", {}).get("containers") or []]
    if _OURS in there or not there:
        return _OURS
    chosen = (pod["metadata"].get("annotations") or {}).get(_DEFAULT)
    return chosen if chosen in there else there[0]
