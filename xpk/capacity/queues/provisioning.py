"""The admission check that requests slices from GKE: set on every queue with such slices, deleted with the last one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from xpk.api.base import ObjectApi
from xpk.capacity.queues.reading import Queues, maker_of
from xpk.capacity.queues.request import as_spec
from xpk.model import names
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError
from xpk.model.specs import QueueSpec
from xpk.render import render_queue

_OBJECTS = (  # in order of deletion: references first
    ("AdmissionCheck", names.PROVISIONING_CHECK),
    ("ProvisioningRequestConfig", names.PROVISIONING_CONFIG),
)


def is_settled(api: ObjectApi) -> bool:
    """Return whether `settle` would change nothing."""
    queues = Queues.read(api)
    return not any(_outdated(queues)) and (bool(queues.queued) or not any(_ours(api)))


def settle(api: ObjectApi) -> None:
    """Set the check on other queues for the same types as on the cluster's own; delete it if it has no types."""
    queues = Queues.read(api)
    for spec in _outdated(queues):
        for obj in render_queue(spec):
            if obj["kind"] == "ClusterQueue":
                api.apply(obj)
    if not queues.queued:
        for kind, name in _ours(api):
            api.delete(kind, name)


def _outdated(queues: Queues) -> Iterator[QueueSpec]:
    """Yield xpk's queues whose checks have other types, with their new state."""
    for team in queues.teams():
        if maker_of(team) != "xpk":
            continue  # it may be a flavor that is not an accelerator type
        have = as_spec(queues.info(team))
        quotas = tuple(replace(quota, queued=quota.shape.name in queues.queued) for quota in have.quotas)
        if quotas != have.quotas:
            yield replace(have, quotas=quotas)


def _ours(api: ObjectApi) -> Iterator[tuple[str, str]]:
    """Return the existing objects of the check if xpk created it; none if this user may not read them."""
    for kind, name in _OBJECTS:
        with suppress(NotFoundError, MissingToolError, AuthorizationError):
            if maker_of(api.get(kind, name)) == "xpk":
                yield kind, name
