"""What workloads mount: read from what a user typed, looked for on the cluster, and read from objects again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from xpk.api.base import Obj, ObjectApi
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, UsageError
from xpk.model.mounts import FORM, GCSFUSE_DRIVER, Mount, mount_problems, parse_mounts
from xpk.model.specs import Target, WorkloadSpec

_MANY = {"ReadWriteMany", "ReadOnlyMany"}


def read_mounts(texts: Sequence[str], target: Target, node_folder: str | None = None) -> tuple[Mount, ...]:
    """Return what `--mount` values mean. Raises UsageError with all that is wrong with them."""
    if texts and target.on_this_machine:
        raise UsageError(
            "--mount: hosts are processes of this machine, and nothing can be mounted for them alone",
            hint="leave it out: they see all folders of this machine at their own paths",
        )
    mounts, problems = parse_mounts(texts)
    problems += mount_problems(mounts, filter(None, (target.shared_folder, node_folder)))
    if problems:
        raise UsageError("hosts cannot be given these mounts", problems=problems, hint=FORM)
    return mounts


def check_mounts(api: ObjectApi, spec: WorkloadSpec, *, cluster: str) -> list[str]:
    """Look whether a cluster has what a workload mounts; return what may go wrong, one line each.

    Raises NotFoundError for a claim that is not there, MissingToolError without the driver for buckets, UsageError for
    a claim that its hosts cannot share. What we may not see is left to the cluster.
    """
    notes: list[str] = []
    if claims := [mount for mount in spec.mounts if not mount.is_bucket]:
        notes += _claims(api, claims, spec)
    if buckets := [mount for mount in spec.mounts if mount.is_bucket]:
        notes += _driver(api, buckets[0], cluster)
    return notes


def mounts_of(pod_spec: Obj) -> tuple[Mount, ...]:
    """Return the claims and buckets that the hosts of a JobSet mount, whoever made it."""
    sources = {volume["name"]: source for volume in pod_spec.get("volumes") or [] if (source := _source(volume))}
    return tuple(
        Mount(
            source=sources[each["name"]],
            target=each["mountPath"],
            sub_path=each.get("subPath", ""),
            read_only=bool(each.get("readOnly")),
        )
        for each in pod_spec["containers"][0].get("volumeMounts") or []
        if each["name"] in sources
    )


def _claims(api: ObjectApi, mounts: Sequence[Mount], spec: WorkloadSpec) -> Iterable[str]:
    names = list(dict.fromkeys(mount.source for mount in mounts))
    try:
        # One request, however many claims: a create makes eight at most.
        there = {obj["metadata"]["name"]: obj for obj in api.list("PersistentVolumeClaim", spec.namespace)}
    except AuthorizationError as error:
        return [f"nobody has looked whether there is a claim {', '.join(names)}: {error.message}"]
    if missing := [name for name in names if name not in there]:
        found = f"there are: {', '.join(there)}" if there else "`xpk docs kubernetes` shows how one is made"
        raise NotFoundError(
            f"there is no PersistentVolumeClaim {', '.join(map(repr, missing))} in namespace '{spec.namespace}'",
            hint=found,
        )
    return [note for mount in mounts for note in _claim_notes(there[mount.source], mount, spec)]


def _claim_notes(claim: Obj, mount: Mount, spec: WorkloadSpec) -> Iterator[str]:
    """Yield what may keep hosts from using a claim. Raises UsageError for what does."""
    modes = set(claim.get("spec", {}).get("accessModes") or [])
    show = f"`kubectl describe pvc {mount.source} --namespace {spec.namespace}` shows it"
    if claim.get("status", {}).get("phase") == "Lost":
        raise UsageError(f"claim '{mount.source}' has lost its volume", hint=show)
    if modes == {"ReadWriteOncePod"} and spec.num_hosts > 1:
        raise UsageError(
            f"claim '{mount.source}' is ReadWriteOncePod: one pod may mount it, and the workload has {spec.num_hosts}",
            hint="make one that is ReadWriteMany or ReadOnlyMany",
        )
    if modes and not modes & _MANY and spec.num_hosts > 1:
        yield f"claim '{mount.source}' is {', '.join(sorted(modes))}: hosts on several nodes may not all get it"
    if modes == {"ReadOnlyMany"} and not mount.read_only:
        yield f"claim '{mount.source}' is ReadOnlyMany: hosts may not write to it; `readonly` says so"


def _driver(api: ObjectApi, mount: Mount, cluster: str) -> list[str]:
    try:
        api.get("CSIDriver", GCSFUSE_DRIVER)
    except NotFoundError:
        raise MissingToolError(
            f"cluster '{cluster}' cannot mount {mount.source}: it has no driver {GCSFUSE_DRIVER}",
            hint=f"on GKE: `xpk cluster create {cluster} --enable-gcsfuse-csi-driver`, with the flags that it was made "
            "with; elsewhere mount a claim",
        ) from None
    except AuthorizationError as error:
        return [f"nobody has looked whether the cluster can mount buckets: {error.message}"]
    return []


def _source(volume: dict[str, Any]) -> str:
    """Return the source of a volume as `--mount` writes it, "" for one of another kind."""
    if claim := volume.get("persistentVolumeClaim"):
        return str(claim["claimName"])
    csi = volume.get("csi") or {}
    if csi.get("driver") != GCSFUSE_DRIVER:
        return ""
    attributes = csi.get("volumeAttributes") or {}
    options = str(attributes.get("mountOptions", "")).split(",")
    prefix = next((each.removeprefix("only-dir=") for each in options if each.startswith("only-dir=")), "")
    return f"gs://{attributes.get('bucketName', '')}" + (f"/{prefix}" if prefix else "")
