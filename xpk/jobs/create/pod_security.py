"""Workloads in namespaces that enforce the Pod Security Standards of Kubernetes."""

from __future__ import annotations

from dataclasses import replace

from xpk.api.base import ObjectApi
from xpk.model.errors import AuthorizationError, NotFoundError, UsageError
from xpk.model.specs import WorkloadSpec

_ENFORCE = "pod-security.kubernetes.io/enforce"
_WITHOUT_NODE_FOLDERS = ("baseline", "restricted")


def fit_namespace(api: ObjectApi, spec: WorkloadSpec) -> WorkloadSpec:
    """Return a spec whose pods the namespace admits: not as root where it enforces `restricted`.

    Raises UsageError if it would refuse them all: the JobSet would be created, and wait forever.
    """
    if spec.target.on_this_machine:
        return spec
    level = _enforced(api, spec.namespace)
    folders = [folder for folder in (spec.target.shared_folder, spec.node_folder) if folder]
    if level in _WITHOUT_NODE_FOLDERS and folders:
        raise UsageError(
            f"namespace '{spec.namespace}' enforces Pod Security '{level}', which refuses folders of nodes: "
            f"{', '.join(folders)}",
            hint="use another --namespace"
            + (", or leave out --node-folder" if folders == [spec.node_folder] else ": this cluster's output is there"),
        )
    return replace(spec, non_root=True) if level == "restricted" else spec


def _enforced(api: ObjectApi, namespace: str) -> str:
    """Return the level that a namespace enforces, "" for none, or if this user may not read it."""
    try:
        namespace_obj = api.get("Namespace", namespace)
    except (AuthorizationError, NotFoundError):
        return ""
    return str((namespace_obj["metadata"].get("labels") or {}).get(_ENFORCE, ""))
