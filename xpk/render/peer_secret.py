"""The peer secret of a workload, by which its hosts authenticate each other."""

from __future__ import annotations

import base64
import secrets
from typing import Any

from xpk.model import names
from xpk.model.specs import WorkloadSpec

_BYTES = 32


def mounted_peer_secret(spec: WorkloadSpec) -> dict[str, str] | None:
    """Return the volume with the workload's Secret."""
    if spec.target.on_this_machine:
        return None
    return {
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
            "data": {names.PEER_SECRET_KEY: base64.b64encode(secrets.token_hex(_BYTES).encode()).decode()},
        }
    ]
