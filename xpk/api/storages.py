"""Storages of a namespace: claims and buckets that workloads mount by name. Each is a labeled ConfigMap.

`xpk storage attach` writes them. `workload create --storage NAME` mounts the named ones and those that are mounted
automatically:

    mounts = [storage.mount for storage in choose(api, namespace, names)]

Local clusters cannot mount anything and store no such ConfigMaps: do not call this for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xpk.api.base import Obj, ObjectApi
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError
from xpk.model.mounts import Mount

SELECTOR = {"xpk.dev/kind": "storage"}
TYPES = ("gcsfuse", "gcpfilestore", "parallelstore", "pd", "lustre", "claim")
_PREFIX = "xpk-storage-"
_TRUE = "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A named mount.

    `type`: one of `TYPES`.
    `auto_mount`: every workload of the namespace mounts it.
    """

    name: str
    type: str
    mount: Mount
    namespace: str = "default"
    auto_mount: bool = False
    created: str = field(default="", compare=False)

    @property
    def config_map(self) -> str:
        """Return the name of the ConfigMap that stores it."""
        return f"{_PREFIX}{self.name}"

    def record(self) -> Obj:
        """Return the ConfigMap that stores it."""
        flags = {
            "read-only": self.mount.read_only,
            "auto-mount": self.auto_mount,
            "prefetch-metadata": self.mount.prefetch_metadata,
        }
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self.config_map,
                "namespace": self.namespace,
                "labels": {"app.kubernetes.io/managed-by": "xpk", **SELECTOR},
            },
            "data": {
                "type": self.type,
                "source": self.mount.source,
                "mount-point": self.mount.target,
                "sub-path": self.mount.sub_path,
                "mount-options": ",".join(self.mount.options),
                **{key: str(value).lower() for key, value in flags.items()},
            },
        }


def load(api: ObjectApi, namespace: str) -> list[Storage]:
    """Return the storages of a namespace, by name. Raises AuthorizationError, or MissingToolError if it is local."""
    storages = [_read(obj) for obj in api.list("ConfigMap", namespace, SELECTOR) if _is_storage(obj)]
    return sorted(storages, key=lambda storage: storage.name)


def choose(api: ObjectApi, namespace: str, storage_names: Sequence[str]) -> list[Storage]:
    """Return the storages that a workload mounts: the named ones, and those that are mounted automatically.

    Raises NotFoundError for all unknown names. Without names, a missing permission to list is not an error.
    """
    try:
        existing = load(api, namespace)
    except (AuthorizationError, MissingToolError):
        if storage_names:
            raise
        return []
    known = [storage.name for storage in existing]
    if missing := [name for name in dict.fromkeys(storage_names) if name not in known]:
        quoted_names = ", ".join(f"'{name}'" for name in missing)
        raise NotFoundError(
            f"storage {quoted_names} not found in namespace '{namespace}'",
            hint=f"choose from {', '.join(known)}"
            if known
            else "`xpk storage attach NAME --type gcsfuse ...` adds one",
        )
    return [storage for storage in existing if storage.auto_mount or storage.name in storage_names]


def _is_storage(obj: Obj) -> bool:
    """Return whether a ConfigMap is a valid storage; others are ignored."""
    data = obj.get("data") or {}
    return obj["metadata"]["name"].startswith(_PREFIX) and bool(data.get("source") and data.get("mount-point"))


def _read(obj: Obj) -> Storage:
    meta, data = obj["metadata"], obj["data"]
    return Storage(
        name=meta["name"].removeprefix(_PREFIX),
        type=data.get("type", ""),
        namespace=meta["namespace"],
        auto_mount=data.get("auto-mount") == _TRUE,
        created=str(meta.get("creationTimestamp", "")),
        mount=Mount(
            source=data["source"],
            target=data["mount-point"],
            sub_path=data.get("sub-path", ""),
            read_only=data.get("read-only") == _TRUE,
            options=tuple(filter(None, data.get("mount-options", "").split(","))),
            prefetch_metadata=data.get("prefetch-metadata") == _TRUE,
        ),
    )
