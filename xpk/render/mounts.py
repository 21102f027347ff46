"""Volumes, volume mounts and annotations of pods for their hosts' storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xpk.model.mounts import GCSFUSE_DRIVER, Mount
from xpk.model.specs import WorkloadSpec

_TEMPORARY = "/tmp"  # noqa: S108  # of pods

# The driver's webhook puts its sidecar beside the host. Hosts have their whole machine, so it gets no limits: those
# that it has by default (250m, 256Mi, 5Gi) slow down large reads.
_SIDECAR = {
    "gke-gcsfuse/volumes": "true",
    "gke-gcsfuse/cpu-limit": "0",
    "gke-gcsfuse/memory-limit": "0",
    "gke-gcsfuse/ephemeral-storage-limit": "0",
}
# Files belong to root, and the image's user is unknown: within a pod all users may write.
_WRITABLE = ("file-mode=666", "dir-mode=777")


def pod_annotations(mounts: Sequence[Mount]) -> dict[str, str]:
    """Return the annotations of the pods."""
    return dict(_SIDECAR) if any(mount.is_bucket for mount in mounts) else {}


def volumes(mounts: Sequence[Mount]) -> list[dict[str, Any]]:
    """Return the pods' volumes: one per source, since the kubelet waits forever for a source that has two names."""
    return [
        {"name": name, **_volume(source, [mount for mount in mounts if mount.source == source])}
        for source, name in _names(mounts).items()
    ]


def volume_mounts(mounts: Sequence[Mount]) -> list[dict[str, Any]]:
    """Return the volume mounts of the host's container."""
    of_source = _names(mounts)
    return [
        {
            "name": of_source[mount.source],
            "mountPath": mount.target,
            **({"subPath": mount.sub_path} if mount.sub_path else {}),
            **({"readOnly": True} if mount.read_only else {}),
        }
        for mount in mounts
    ]


def temporary_folder(spec: WorkloadSpec) -> str | None:
    """Return the folder that needs a volume to be writable: /tmp, if nothing is mounted there."""
    mounted = {spec.node_folder, spec.target.shared_folder, *(mount.target for mount in spec.mounts)}
    return _TEMPORARY if spec.read_only_root and _TEMPORARY not in mounted else None


def _names(mounts: Sequence[Mount]) -> dict[str, str]:
    return {source: f"mount-{index}" for index, source in enumerate(dict.fromkeys(mount.source for mount in mounts))}


def _volume(source: str, mounts: Sequence[Mount]) -> dict[str, Any]:
    read_only = {"readOnly": True} if all(mount.read_only for mount in mounts) else {}
    if not mounts[0].is_bucket:
        return {"persistentVolumeClaim": {"claimName": source, **read_only}}
    # Without implicit-dirs, folders without objects of their own are invisible.
    options = ["implicit-dirs", *(() if read_only else _WRITABLE)]
    if mounts[0].prefix:
        options.append(f"only-dir={mounts[0].prefix}")
    options += [option for mount in mounts for option in mount.options]
    attributes = {"bucketName": mounts[0].bucket, "mountOptions": ",".join(dict.fromkeys(options))}
    if any(mount.prefetch_metadata for mount in mounts):
        attributes["gcsfuseMetadataPrefetchOnMount"] = "true"
    return {"csi": {"driver": GCSFUSE_DRIVER, **read_only, "volumeAttributes": attributes}}
