"""Conditions of webhooks that a controller's release calls for every pod, although most calls decide nothing."""

from __future__ import annotations

from xpk.api.base import Obj, ObjectApi
from xpk.model.errors import AuthorizationError, NotFoundError

_CONFIGURATION = "jobset-validating-webhook-configuration"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_POD_VALIDATION = "vpod.kb.io"  # JobSet's: it refuses hosts whose slice has no node pool yet
# JobSet's other webhook gives every host after a slice's first the first one's node pool, once it has one.
_AWAITS_POOL = (
    f"has(object.metadata.annotations) && '{_EXCLUSIVE}' in object.metadata.annotations && "
    f"(!has(object.spec.nodeSelector) || !(object.metadata.annotations['{_EXCLUSIVE}'] in object.spec.nodeSelector))"
)


def limited(webhook: Obj) -> Obj:
    """Return a webhook with the condition under which it is called; others unchanged."""
    if webhook["name"] != _POD_VALIDATION or "objectSelector" not in webhook:
        return webhook
    return {**webhook, "matchConditions": [{"name": "awaits-node-pool", "expression": _AWAITS_POOL}]}


def is_unlimited(api: ObjectApi) -> bool:
    """Return whether JobSet's webhook is called for every pod, as an earlier xpk has installed it."""
    try:
        configuration = api.get("ValidatingWebhookConfiguration", _CONFIGURATION)
    except (NotFoundError, AuthorizationError):
        return False
    return any(limited(hook) != hook and "matchConditions" not in hook for hook in configuration.get("webhooks", ()))
