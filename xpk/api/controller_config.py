"""Configuration of JobSet and Kueue: a ConfigMap that their controllers read when they start."""

from __future__ import annotations

import re
from typing import Any

import yaml

from xpk.api.base import Obj, ObjectApi
from xpk.model.errors import AuthorizationError, NotFoundError

CONFIG = "controller_manager_config.yaml"  # key of the ConfigMap
JOBSET_NAMESPACE, JOBSET_CONFIG_MAP = "jobset-system", "jobset-manager-config"
JOBSET_DEPLOYMENT = "jobset-controller-manager"
KUEUE_NAMESPACE, KUEUE_CONFIG_MAP = "kueue-system", "kueue-manager-config"
RESTART_JOB = "RestartJob"  # JobSet's gate for slices that restart alone


def read_config(api: ObjectApi, name: str, namespace: str) -> dict[str, Any] | None:
    """Return a controller's configuration; None if it does not exist or this user may not read it."""
    try:
        configmap = api.get("ConfigMap", name, namespace)
    except (NotFoundError, AuthorizationError):
        return None
    try:
        config = yaml.safe_load(str((configmap.get("data") or {}).get(CONFIG, "")))
    except yaml.YAMLError:
        return None
    return config if isinstance(config, dict) else {}


def has_gate(config: dict[str, Any], gate: str) -> bool:
    """Return whether a configuration turns a feature gate on."""
    gates = config.get("featureGates")
    return isinstance(gates, dict) and bool(gates.get(gate))


def has_gate_argument(deployment: Obj, gate: str) -> bool:
    """Return whether an argument in a controller's Deployment turns a feature gate on."""
    words = deployment["spec"]["template"]["spec"]["containers"][0].get("args", [])
    return any((gate, "true") in re.findall(r"(\w+)=(\w+)", word) for word in words)
