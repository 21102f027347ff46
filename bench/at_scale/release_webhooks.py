"""The webhooks for pods as the releases of JobSet and Kueue set them up, which Google's xpk leaves as they are."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from bench.at_scale.cluster import ScaleCluster
from xpk.api.base import Obj
from xpk.capacity.controllers.install import CONTROLLERS

_KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_SETTLED_SECONDS = 3.0  # until the API server has the new configurations
_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@contextmanager
def release_webhooks(cluster: ScaleCluster) -> Iterator[None]:
    """Call the releases' webhooks for every pod until the end of the block."""
    current = [
        cluster.api.get(
            kind, f"{controller.name.lower()}-{kind.removesuffix('WebhookConfiguration').lower()}-webhook-configuration"
        )
        for controller in CONTROLLERS
        for kind in _KINDS
    ]
    released = _released(cluster)
    try:
        for obj in current:
            _replace(cluster, obj, [_as_released(hook) for hook in obj["webhooks"]] + _missing(obj, released))
        time.sleep(_SETTLED_SECONDS)
        yield
    finally:
        for obj in current:
            _replace(cluster, obj, obj["webhooks"])
        time.sleep(_SETTLED_SECONDS)


def _released(cluster: ScaleCluster) -> dict[tuple[str, str], list[Obj]]:
    """Return the webhooks of the releases' manifests by kind and name of their configuration."""
    return {
        (obj["kind"], obj["metadata"]["name"]): obj["webhooks"]
        for manifest in cluster.manifests
        for obj in yaml.load_all(manifest.read_text(encoding="utf-8"), Loader=_PARSER)
        if obj["kind"] in _KINDS
    }


def _as_released(hook: Obj) -> Obj:
    return {key: value for key, value in hook.items() if key != "matchConditions"}


def _missing(obj: Obj, released: dict[tuple[str, str], list[Obj]]) -> list[Obj]:
    """Return the webhooks for pods that a configuration lacks, with the certificate of the others."""
    names = {hook["name"] for hook in obj["webhooks"]}
    authority = obj["webhooks"][0]["clientConfig"]["caBundle"]
    lacking = [
        copy.deepcopy(hook)
        for hook in released[obj["kind"], obj["metadata"]["name"]]
        if hook["name"] not in names and any("pods" in rule["resources"] for rule in hook["rules"])
    ]
    for hook in lacking:
        hook["clientConfig"]["caBundle"] = authority
    return lacking


def _replace(cluster: ScaleCluster, obj: Obj, webhooks: list[Obj]) -> None:
    cluster.api.patch(obj["kind"], obj["metadata"]["name"], {"webhooks": webhooks})
