"""Kubeconfigs with several contexts."""

from __future__ import annotations

from typing import Any


def kubeconfig(*contexts: str, current: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "contexts": [{"name": name, "context": {"cluster": f"{name}-c", "user": f"{name}-u"}} for name in contexts],
        "clusters": [
            {"name": f"{name}-c", "cluster": {"server": "https://x", "certificate-authority": "ca.crt"}}
            for name in contexts
        ],
        "users": [{"name": f"{name}-u", "user": {"token": f"secret of {name}"}} for name in contexts],
    }
