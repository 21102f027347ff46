"""Configuration of JobSet and Kueue: a ConfigMap that their controllers read when they start."""

from __future__ import annotations

from typing import Any

import yaml

from xpk.api.base import ObjectApi
from xpk.model.errors import AuthorizationError, NotFoundError

CONFIG = "controller_manager_config.yaml"  # key of the ConfigMap
JOBSET_NAMESPACE, JOBSET_CONFIG_MAP = "jobset-system", "jobset-manager-config"
KUEUE_NAMESPACE, KUEUE_CONFIG_MAP = "kueue-system", "kueue-manager-config"
RESTART_JOB = "RestartJob"  # JobSet's gate for slices that restart alone


def read_config(api: ObjectApi, name: str, namespace: str) -> dict[str, Any] | None:
    """Return a controller's configuration; None if it does not exist or this user may not read it."""
    try:
        configmap = api.get("ConfigMap", name, namespace)
    except (NotFoundError, AuthorizationError):
        return None
    try:
        config = yaml.safe_load(configmap.get("data", {}).get(CONFIG, ""))
    except yaml.YAMLError:
        return None
    return config if isinstance(config, dict) else {}


def enabled_gates(config: dict[str, Any]) -> set[str]:
    """Return the feature gates that a configuration turns on."""
    return {name for name, is_on in (config.get("featureGates") or {}).items() if is_on}
