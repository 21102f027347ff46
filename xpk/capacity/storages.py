"""Named storages of a cluster: attach and detach claims and buckets, create and delete Filestore instances."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.storages import Storage, choose
from xpk.capacity.plan.plan import Plan, Step
from xpk.model import names
from xpk.model.errors import ConflictError, NotFoundError, UsageError
from xpk.model.mounts import GCSFUSE_DRIVER, Mount, mount_problems
from xpk.storage.text import read_text

Connect = Callable[[], ObjectApi]

TIERS = {
    "BASIC_HDD": "standard", "BASIC_SSD": "premium", "ZONAL": "zonal", "REGIONAL": "regional",
    "ENTERPRISE": "enterprise",
}  # fmt: skip
ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany")
_FILESTORE, _FILESTORE_DRIVER = "gcpfilestore", "filestore.csi.storage.gke.io"
_HINT = "name a file with the volume and its claim"
_MANIFEST_KINDS = ("StorageClass", "PersistentVolume", "PersistentVolumeClaim")
_SIZE = re.compile(r"[1-9][0-9]{0,5}")
_MADE = {"app.kubernetes.io/managed-by": "xpk"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRequest:
    """A request. `manifest`: a file with the volume and its claim; `claim`: an existing one."""

    name: str
    type: str
    mount_point: str
    namespace: str = "default"
    read_only: bool = False
    auto_mount: bool = False
    bucket: str | None = None
    mount_options: str = ""
    prefetch_metadata: bool = False
    manifest: Path | None = None
    claim: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filestore:
    """A Filestore instance to create. `size`: in GiB."""

    size: str
    tier: str
    access_mode: str


def plan_attach(request: StorageRequest, connect: Connect | None) -> Plan:
    """Plan attaching a volume under a name. `connect`: None skips all lookups, for dry runs.

    Raises UsageError with all problems, NotFoundError without the claim.
    """
    objects, mount, problems = _volume(request)
    problems += _problems(request, mount)
    if problems:
        raise UsageError(
            f"storage '{request.name}' cannot be attached", problems=problems, hint="see `xpk storage attach --help`"
        )
    claims = [obj for obj in objects if obj["kind"] == "PersistentVolumeClaim"]
    if connect and not mount.is_bucket and not claims:
        _check_claim(connect(), mount.source, request)
    return _plan(
        f"attach storage '{request.name}' in namespace '{request.namespace}'", request, mount, objects, connect
    )


def plan_create(request: StorageRequest, instance: Filestore, connect: Connect | None) -> Plan:
    """Plan a Filestore instance, created by its driver for a claim. Raises UsageError."""
    mount = _mount(request, request.name)
    problems = _problems(request, mount)
    if not _SIZE.fullmatch(instance.size):
        problems.append(f"--size must be a number of GiB, got '{instance.size}'")
    if request.type != _FILESTORE:
        problems.append(f"--type {request.type} cannot be created here: create it elsewhere, then `xpk storage attach`")
    if problems:
        raise UsageError(
            f"storage '{request.name}' cannot be created", problems=problems, hint="see `xpk storage create --help`"
        )
    objects = _filestore(request, instance)
    summary = f"create storage '{request.name}' in namespace '{request.namespace}': Filestore {instance.tier}, "
    return _plan(f"{summary}{instance.size} GiB", request, mount, objects, connect)


def plan_detach(name: str, namespace: str, connect: Connect | None) -> Plan:
    """Plan the removal of a name; volume and claim stay. Raises NotFoundError."""
    source = _known(name, namespace, connect).mount.source if connect else "its volume"
    return Plan(
        f"detach storage '{name}' in namespace '{namespace}'; {source} stays",
        [_unregister_step(name, namespace, connect)],
    )


def plan_delete(name: str, namespace: str, connect: Connect | None) -> Plan:
    """Plan the deletion of an instance from `plan_create`, with its data. Raises ConflictError for any other.

    The claim is deleted before the record: as long as the instance costs money, `storage list` shows it, and the same
    command can be repeated.
    """
    if connect:
        storage, api = _known(name, namespace, connect), connect()
        # The claim of `plan_create` has the storage's name; a storage may be attached to that of another one.
        made = storage.type == _FILESTORE and storage.mount.source == name and _is_made(api, storage)
        if not made:
            raise ConflictError(
                f"storage '{name}' was not created by `xpk storage create`", hint=f"`xpk storage detach {name}`"
            )
    remove = Step(
        f"delete claim '{name}', and with it the instance and its data",
        partial(_deleted, connect, "PersistentVolumeClaim", name, namespace),
    )
    summary = f"delete storage '{name}' in namespace '{namespace}'"
    return Plan(summary, [remove, _unregister_step(name, namespace, connect)])


def _plan(summary: str, request: StorageRequest, mount: Mount, objects: Objs, connect: Connect | None) -> Plan:
    storage = Storage(
        name=request.name, type=request.type, mount=mount, namespace=request.namespace, auto_mount=request.auto_mount
    )
    steps = [Step(f"apply {obj['kind']} {obj['metadata']['name']}", partial(_applied, connect, obj)) for obj in objects]
    steps.append(Step(f"record that '{request.name}' is {mount}", partial(_applied, connect, storage.record())))
    whose = "every workload of the namespace mounts it" if request.auto_mount else "--storage NAME mounts it"
    return Plan(summary, steps, notes=(whose,), facts={"objects": [*objects, storage.record()]})


def _volume(request: StorageRequest) -> tuple[Objs, Mount, list[str]]:
    """Return the objects to apply, the mount of workloads, and the problems, one line each."""
    if request.manifest is None:
        source = (
            f"gs://{request.bucket or request.name}" if request.type == "gcsfuse" else request.claim or request.name
        )
        needed = request.type in ("parallelstore", "pd", "lustre") and not request.claim
        problems = [f"--type {request.type} requires --manifest FILE, or --claim NAME"] if needed else []
        return [], _mount(request, source), problems
    try:
        objects = _read(request.manifest, request.namespace)
    except UsageError as error:
        return [], _mount(request, request.name), list(error.problems)
    if request.type == "gcsfuse":
        return _bucket_of(objects, request)
    claims = [obj["metadata"]["name"] for obj in objects if obj["kind"] == "PersistentVolumeClaim"]
    wrong = (
        [] if len(claims) == 1 else [f"{request.manifest} must have one PersistentVolumeClaim, it has {len(claims)}"]
    )
    return objects, _mount(request, claims[0] if claims else request.name), wrong


def _bucket_of(objects: Objs, request: StorageRequest) -> tuple[Objs, Mount, list[str]]:
    """Return the bucket of a manifest's volume: pods mount it directly, so that they get the driver's sidecar."""
    volumes = [obj.get("spec") or {} for obj in objects if obj["kind"] == "PersistentVolume"]
    matches = [volume for volume in volumes if (volume.get("csi") or {}).get("driver") == GCSFUSE_DRIVER]
    if len(matches) != 1:
        return [], _mount(request, request.name), [f"{request.manifest} must have one volume of {GCSFUSE_DRIVER}"]
    options = ",".join([*(matches[0].get("mountOptions") or []), *filter(None, [request.mount_options])])
    return [], _mount(request, f"gs://{matches[0]['csi'].get('volumeHandle', '')}", options), []


def _read(file: Path, namespace: str) -> Objs:
    """Return the objects of a manifest, the claim in its namespace. Raises UsageError."""
    try:
        text = read_text(file, what="--manifest", hint=_HINT)
        documents: list[Any] = [document for document in yaml.safe_load_all(text) if document is not None]
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:  # ValueError: an invalid date
        raise UsageError(f"--manifest {file} cannot be read: {str(error).splitlines()[0]}", hint=_HINT) from error
    problems = [
        f"--manifest {file}: {obj.get('kind') if isinstance(obj, dict) else obj!r} is none of "
        f"{', '.join(_MANIFEST_KINDS)}"
        for obj in documents
        if not isinstance(obj, dict) or obj.get("kind") not in _MANIFEST_KINDS or not _name_of(obj)
    ]
    problems += [
        f"--manifest {file}: {field} of {_name_of(obj)} must be a mapping"
        for obj in documents
        if isinstance(obj, dict) and (field := _not_a_mapping(obj))
    ]
    if problems:
        raise UsageError(problems[0], problems=problems, hint=_HINT)
    for obj in documents:
        if obj["kind"] == "PersistentVolumeClaim":
            obj["metadata"]["namespace"] = namespace
    return sorted(documents, key=lambda obj: _MANIFEST_KINDS.index(obj["kind"]))


def _not_a_mapping(obj: Obj) -> str:
    """Return the name of a field of a volume or a claim that must be a mapping and is not, "" if none."""
    spec = obj.get("spec") or {}
    if not isinstance(spec, dict):
        return "spec"
    return "" if isinstance(spec.get("csi") or {}, dict) else "spec.csi"


def _name_of(obj: Obj) -> str:
    meta = obj.get("metadata")
    return str(meta.get("name") or "") if isinstance(meta, dict) else ""


def _filestore(request: StorageRequest, instance: Filestore) -> Objs:
    tier = TIERS[instance.tier]
    name = f"xpk-filestore-{tier}"
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name, "labels": dict(_MADE)},
            "provisioner": _FILESTORE_DRIVER,
            "parameters": {"tier": tier},
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate",
            "allowVolumeExpansion": True,
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": request.name, "namespace": request.namespace, "labels": dict(_MADE)},
            "spec": {
                "accessModes": [instance.access_mode],
                "storageClassName": name,
                "resources": {"requests": {"storage": f"{instance.size}Gi"}},
            },
        },
    ]


def _mount(request: StorageRequest, source: str, options: str | None = None) -> Mount:
    mount_options = request.mount_options if options is None else options
    is_bucket = source.startswith("gs://")
    return Mount(
        source=source.rstrip("/") if is_bucket else source,
        target=request.mount_point,
        read_only=request.read_only,
        options=tuple(filter(None, mount_options.split(","))) if is_bucket else (),
        prefetch_metadata=is_bucket and request.prefetch_metadata,
    )


def _problems(request: StorageRequest, mount: Mount) -> list[str]:
    problems = [*names.storage_name_problems(request.name), *names.namespace_problems(request.namespace)]
    return problems + [problem.replace("--mount at", "--mount-point") for problem in mount_problems([mount], ())]


def _check_claim(api: ObjectApi, claim: str, request: StorageRequest) -> None:
    try:
        api.get("PersistentVolumeClaim", claim, request.namespace)
    except NotFoundError:
        instead = (
            "`xpk storage create` creates one; --manifest FILE applies one with the volume of an existing instance"
        )
        raise NotFoundError(
            f"PersistentVolumeClaim '{claim}' not found in namespace '{request.namespace}'",
            hint=instead if request.type == _FILESTORE else "--claim NAME, or --manifest FILE",
        ) from None


def _known(name: str, namespace: str, connect: Connect) -> Storage:
    return next(storage for storage in choose(connect(), namespace, [name]) if storage.name == name)


def _is_made(api: ObjectApi, storage: Storage) -> bool:
    try:
        claim = api.get("PersistentVolumeClaim", storage.mount.source, storage.namespace)
    except NotFoundError:  # an earlier deletion was interrupted: only the record is left
        return True
    return _MADE.items() <= (claim["metadata"].get("labels") or {}).items()


def _unregister_step(name: str, namespace: str, connect: Connect | None) -> Step:
    record = Storage(name=name, type="", mount=Mount(source=name, target="/"), namespace=namespace)
    return Step(f"remove the record of '{name}'", partial(_deleted, connect, "ConfigMap", record.config_map, namespace))


def _applied(connect: Connect | None, obj: Obj) -> None:
    assert connect
    connect().apply(obj)


def _deleted(connect: Connect | None, kind: str, name: str, namespace: str) -> None:
    assert connect
    with suppress(NotFoundError):
        connect().delete(kind, name, namespace)
