"""The Secret of a workload's pods: the secret by which they authenticate each other, the supervisor, and xpk_run."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path
from typing import Any

import xpk_run
from xpk.model import names
from xpk.model.specs import WorkloadSpec
from xpk.render.supervisor import is_supervised, supervisor_archive

_BYTES = 32


def mounted_peer_secret(spec: WorkloadSpec) -> dict[str, Any] | None:
    """Return the volume with the workload's Secret.

    It names its keys: pods wait for a Secret that has them all, while that of an earlier workload is being replaced.
    """
    if spec.target.on_this_machine:
        return None
    return {
        "keys": [names.PEER_SECRET_KEY, names.SUPERVISOR_KEY, names.PROGRESS_KEY] if is_supervised(spec) else [],
        "name": names.peer_secret(spec.name),
        "folder": names.PEER_SECRET_FOLDER,
        "variable": names.PEER_SECRET_VARIABLE,
        "file": f"{names.PEER_SECRET_FOLDER}/{names.PEER_SECRET_KEY}",
    }


def render_peer_secret(spec: WorkloadSpec) -> list[dict[str, Any]]:
    """Return the Secret of a workload's pods, with a new value in each call; none for hosts of this machine.

    The local control plane creates its own.
    """
    if spec.target.on_this_machine:
        return []
    data = {names.PEER_SECRET_KEY: secrets.token_hex(_BYTES).encode()}
    if is_supervised(spec):
        data[names.SUPERVISOR_KEY] = supervisor_archive(
            elastic=bool(spec.min_slices), replaces_slices=spec.replaces_slices
        )
        data[names.PROGRESS_KEY] = Path(xpk_run.__file__).read_bytes()
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": names.peer_secret(spec.name),
                "namespace": spec.namespace,
                "labels": {"app.kubernetes.io/managed-by": "xpk", names.WORKLOAD_LABEL: spec.name},
            },
            "type": "Opaque",
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
    ]
