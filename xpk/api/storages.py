"""Storages of a namespace: claims and buckets that workloads mount by name. Each is a labeled ConfigMap.

`xpk storage attach` writes them. `workload create --storage NAME` mounts the named ones and those that are mounted
automatically:

    mounts = [storage.mount for storage in choose(api, namespace, names)]

Local clusters cannot mount anything and store no such ConfigMaps: do not call this for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xpk.api.base import In, Obj, ObjectApi
from xpk.model import names
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError
from xpk.model.mounts import Mount

_KIND = "storage"
SELECTOR = {names.KIND_LABEL: _KIND}
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
    return _storages(api.list("ConfigMap", namespace, SELECTOR))


def choose(api: ObjectApi, namespace: str, storage_names: Sequence[str]) -> list[Storage]:
    """Return the storages that a workload mounts: the named ones, and those that are mounted automatically.

    Raises NotFoundError for all unknown names. Without names, a missing permission to list is not an error.
    """
    return choose_with_code(api, namespace, storage_names, "")[0]


def choose_with_code(
    api: ObjectApi, namespace: str, storage_names: Sequence[str], code: str
) -> tuple[list[Storage], tuple[Obj, ...] | None]:
    """Return what `choose` returns and, read by the same request, the ConfigMaps of this code, at most one.

    They are None if the user may not list ConfigMaps.
    """
    selector = {names.KIND_LABEL: In((_KIND, code))} if code else SELECTOR
    try:
        objects = api.list("ConfigMap", namespace, selector)
    except (AuthorizationError, MissingToolError):
        if storage_names:
            raise
        return [], None
    existing, holders = _storages(objects), tuple(obj for obj in objects if code and obj["metadata"]["name"] == code)
    known = [storage.name for storage in existing]
    if missing := [name for name in dict.fromkeys(storage_names) if name not in known]:
        quoted_names = ", ".join(f"'{name}'" for name in missing)
        raise NotFoundError(
            f"storage {quoted_names} not found in namespace '{namespace}'",
            hint=f"choose from {', '.join(known)}"
            if known
            else "`xpk storage attach NAME --type gcsfuse ...` adds one",
        )
    return [storage for storage in existing if storage.auto_mount or storage.name in storage_names], holders


def _storages(configmaps: Sequence[Obj]) -> list[Storage]:
    return sorted(map(_read, filter(_is_storage, configmaps)), key=lambda storage: storage.name)


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
