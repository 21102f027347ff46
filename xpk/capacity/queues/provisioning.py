"""The admission check that asks GKE for slices: on every queue that has such, and gone with the last of them."""

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

_OBJECTS = (  # what refers to another one goes before it
    ("AdmissionCheck", names.PROVISIONING_CHECK),
    ("ProvisioningRequestConfig", names.PROVISIONING_CONFIG),
)


def is_settled(api: ObjectApi) -> bool:
    """Tell whether `settle` would change nothing."""
    queues = Queues.read(api)
    return not any(_outdated(queues)) and (bool(queues.queued) or not any(_ours(api)))


def settle(api: ObjectApi) -> None:
    """Let other queues check the types that the cluster's own queue checks; without any, remove the check."""
    queues = Queues.read(api)
    for spec in _outdated(queues):
        for obj in render_queue(spec):
            if obj["kind"] == "ClusterQueue":
                api.apply(obj)
    if not queues.queued:
        for kind, name in _ours(api):
            api.delete(kind, name)


def _outdated(queues: Queues) -> Iterator[QueueSpec]:
    """Give the queues of ours that check other types, as they are to be."""
    for each in queues.teams():
        if maker_of(each) != "xpk":
            continue  # it may be of what is no accelerator type
        have = as_spec(queues.info(each))
        quotas = tuple(replace(quota, queued=quota.shape.name in queues.queued) for quota in have.quotas)
        if quotas != have.quotas:
            yield replace(have, quotas=quotas)


def _ours(api: ObjectApi) -> Iterator[tuple[str, str]]:
    """Give what there is of the check, if we made it; nothing where we may not look: then we did not make it either."""
    for kind, name in _OBJECTS:
        with suppress(NotFoundError, MissingToolError, AuthorizationError):
            if maker_of(api.get(kind, name)) == "xpk":
                yield kind, name
