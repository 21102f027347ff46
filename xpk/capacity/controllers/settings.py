"""Settings of JobSet and Kueue that xpk needs, and a check for missing ones."""

from __future__ import annotations

from typing import Any

from xpk.api.base import Obj, ObjectApi
from xpk.api.controller_config import KUEUE_CONFIG_MAP, has_gate, has_gate_argument, read_config

FRAMEWORK = "jobset.x-k8s.io/jobset"


def configured(config: dict[str, Any], gate: str) -> dict[str, Any]:
    """Return a controller's configuration with a feature gate; Kueue's with JobSet as its only framework."""
    config = {**config, "featureGates": {**(config.get("featureGates") or {}), gate: True}}
    if config["apiVersion"].startswith("config.kueue"):
        config["integrations"] = {**config.get("integrations", {}), "frameworks": [FRAMEWORK]}
    return config


def lacks(api: ObjectApi, deployment: Obj, config_map: str, gate: str) -> tuple[str, ...]:
    """Return the missing settings of a cluster's controller as text; empty if its configuration is not readable."""
    config = read_config(api, config_map, deployment["metadata"]["namespace"])
    if config is None:
        return ()
    frameworks = (config.get("integrations") or {}).get("frameworks") or []
    needs_framework = config_map == KUEUE_CONFIG_MAP
    return (
        *((f"framework {FRAMEWORK}",) if needs_framework and FRAMEWORK not in frameworks else ()),
        *((f"feature gate {gate}",) if not (has_gate(config, gate) or has_gate_argument(deployment, gate)) else ()),
    )
