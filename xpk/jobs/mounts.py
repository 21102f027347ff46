"""Mounts of workloads: parsed from options, checked on the cluster, and read back from objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from xpk.api.base import Obj, ObjectApi
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, UsageError
from xpk.model.mounts import FORM, GCSFUSE_DRIVER, Mount, mount_problems, parse_mounts
from xpk.model.specs import Target, WorkloadSpec

_MANY = {"ReadWriteMany", "ReadOnlyMany"}


def read_mounts(texts: Sequence[str], target: Target, node_folder: str | None = None) -> tuple[Mount, ...]:
    """Return the mounts of `--mount` values. Raises UsageError with all problems."""
    if texts and target.on_this_machine:
        raise UsageError(
            "--mount is not supported: hosts are processes of this machine",
            hint="omit --mount; hosts see all folders of this machine at their own paths",
        )
    mounts, problems = parse_mounts(texts)
    problems += mount_problems(mounts, filter(None, (target.shared_folder, node_folder)))
    if problems:
        raise UsageError("invalid mounts", problems=problems, hint=FORM)
    return mounts


def check_mounts(api: ObjectApi, spec: WorkloadSpec, *, cluster: str) -> list[str]:
    """Check that a cluster has the volumes of a workload; return possible problems, one line each.

    Raises NotFoundError for a missing claim, MissingToolError without the driver for buckets, UsageError for a claim
    that its hosts cannot share. Objects that the user may not read are not checked.
    """
    notes: list[str] = []
    if claims := [mount for mount in spec.mounts if not mount.is_bucket]:
        notes += _claims(api, claims, spec)
    if buckets := [mount for mount in spec.mounts if mount.is_bucket]:
        notes += _driver(api, buckets[0], cluster)
    return notes


def mounts_of(pod_spec: Obj) -> tuple[Mount, ...]:
    """Return the claims and buckets that the hosts of any JobSet mount."""
    sources = {volume["name"]: source for volume in pod_spec.get("volumes") or [] if (source := _source(volume))}
    return tuple(
        Mount(
            source=sources[container["name"]],
            target=container["mountPath"],
            sub_path=container.get("subPath", ""),
            read_only=bool(container.get("readOnly")),
        )
        for container in pod_spec["containers"][0].get("volumeMounts") or []
        if container["name"] in sources
    )


def _claims(api: ObjectApi, mounts: Sequence[Mount], spec: WorkloadSpec) -> Iterable[str]:
    names = list(dict.fromkeys(mount.source for mount in mounts))
    try:
        # One request for any number of claims: `create` makes at most eight requests.
        claims = {obj["metadata"]["name"]: obj for obj in api.list("PersistentVolumeClaim", spec.namespace)}
    except AuthorizationError as error:
        return [f"cannot check that claim {', '.join(names)} exists: {error.message}"]
    if missing := [name for name in names if name not in claims]:
        hint = f"choose from {', '.join(claims)}" if claims else "`xpk docs kubernetes` shows how to create one"
        raise NotFoundError(
            f"PersistentVolumeClaim {', '.join(map(repr, missing))} not found in namespace '{spec.namespace}'",
            hint=hint,
        )
    return [note for mount in mounts for note in _claim_notes(claims[mount.source], mount, spec)]


def _claim_notes(claim: Obj, mount: Mount, spec: WorkloadSpec) -> Iterator[str]:
    """Yield possible problems of hosts with a claim. Raises UsageError for certain ones."""
    modes = set(claim.get("spec", {}).get("accessModes") or [])
    show = f"`kubectl describe pvc {mount.source} --namespace {spec.namespace}` shows it"
    if claim.get("status", {}).get("phase") == "Lost":
        raise UsageError(f"claim '{mount.source}' has lost its volume", hint=show)
    if modes == {"ReadWriteOncePod"} and spec.num_hosts > 1:
        raise UsageError(
            f"claim '{mount.source}' is ReadWriteOncePod: one pod may mount it, but the workload has {spec.num_hosts}",
            hint="use a claim that is ReadWriteMany or ReadOnlyMany",
        )
    if modes and not modes & _MANY and spec.num_hosts > 1:
        yield f"claim '{mount.source}' is {', '.join(sorted(modes))}: hosts on several nodes may be unable to mount it"
    if modes == {"ReadOnlyMany"} and not mount.read_only:
        yield f"claim '{mount.source}' is ReadOnlyMany, but mounted for writing; add `readonly`"


def _driver(api: ObjectApi, mount: Mount, cluster: str) -> list[str]:
    try:
        api.get("CSIDriver", GCSFUSE_DRIVER)
    except NotFoundError:
        raise MissingToolError(
            f"cluster '{cluster}' cannot mount {mount.source}: it has no driver {GCSFUSE_DRIVER}",
            hint=f"on GKE, run `xpk cluster create {cluster} --enable-gcsfuse-csi-driver` with the cluster's other "
            "flags; elsewhere, mount a claim",
        ) from None
    except AuthorizationError as error:
        return [f"cannot check that the cluster can mount buckets: {error.message}"]
    return []


def _source(volume: dict[str, Any]) -> str:
    """Return the source of a volume in the notation of `--mount`, "" for other kinds of volumes."""
    if claim := volume.get("persistentVolumeClaim"):
        return str(claim["claimName"])
    csi = volume.get("csi") or {}
    if csi.get("driver") != GCSFUSE_DRIVER:
        return ""
    attributes = csi.get("volumeAttributes") or {}
    options = str(attributes.get("mountOptions", "")).split(",")
    prefix = next((option.removeprefix("only-dir=") for option in options if option.startswith("only-dir=")), "")
    return f"gs://{attributes.get('bucketName', '')}" + (f"/{prefix}" if prefix else "")
