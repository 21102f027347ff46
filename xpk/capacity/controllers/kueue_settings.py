"""Kueue's configuration: the settings that xpk needs, and a check for missing ones."""

from __future__ import annotations

import re
from typing import Any

import yaml

from xpk.api.base import Obj, ObjectApi
from xpk.model.errors import AuthorizationError, NotFoundError

CONFIG = "controller_manager_config.yaml"
CONFIG_MAP = "kueue-manager-config"
FRAMEWORK = "jobset.x-k8s.io/jobset"
# Fencing of hosts whose node is gone: without it their pods stay, and the JobSet waits for them forever.
GATE = "FailureRecoveryPolicy"


def configured(config: dict[str, Any]) -> dict[str, Any]:
    """Return Kueue's configuration with JobSet as its only framework and the feature gate that fencing needs."""
    return {
        **config,
        "integrations": {**config.get("integrations", {}), "frameworks": [FRAMEWORK]},
        "featureGates": {**config.get("featureGates", {}), GATE: True},
    }


def lacks(api: ObjectApi, deployment: Obj) -> tuple[str, ...]:
    """Return the missing settings of a cluster's Kueue as text; empty if its configuration is not readable."""
    try:
        configmap = api.get("ConfigMap", CONFIG_MAP, deployment["metadata"]["namespace"])
    except (NotFoundError, AuthorizationError):
        return ()
    config: Any = yaml.safe_load(configmap.get("data", {}).get(CONFIG, "")) or {}
    gates = {name for name, on in (config.get("featureGates") or {}).items() if on}
    for word in deployment["spec"]["template"]["spec"]["containers"][0].get("args", []):
        gates |= {name for name, on in re.findall(r"(\w+)=(\w+)", word) if on == "true"}
    frameworks = (config.get("integrations") or {}).get("frameworks") or []
    return (
        *((f"framework {FRAMEWORK}",) if FRAMEWORK not in frameworks else ()),
        *((f"feature gate {GATE}",) if GATE not in gates else ()),
    )
