"""The NetworkPolicy of a workload, which admits connections from its own hosts only."""

from __future__ import annotations

from typing import Any

from xpk.model import names
from xpk.model.specs import WorkloadSpec

# JobSet puts this label on every pod of a workload.
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"


def render_network_policy(spec: WorkloadSpec) -> list[dict[str, Any]]:
    """Return the NetworkPolicy of a workload's pods, if it has one.

    Connections that the nodes make, such as those of `kubectl port-forward`, are not affected.
    """
    if not spec.network_policy:
        return []
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {
                "name": names.network_policy(spec.name),
                "namespace": spec.namespace,
                "labels": {"app.kubernetes.io/managed-by": "xpk", names.WORKLOAD_LABEL: spec.name},
            },
            "spec": {
                "podSelector": _own_pods(spec),
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": _own_pods(spec)}]}],
            },
        }
    ]


def _own_pods(spec: WorkloadSpec) -> dict[str, Any]:
    return {"matchLabels": {_JOBSET_LABEL: spec.name}}
