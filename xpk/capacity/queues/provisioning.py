"""The admission checks by which GKE provides slices: set on every queue with such slices, deleted with the last one."""

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

_PROVISIONING = (  # in order of deletion: references first
    ("AdmissionCheck", names.PROVISIONING_CHECK),
    ("ProvisioningRequestConfig", names.PROVISIONING_CONFIG),
)
_SLICES = (("AdmissionCheck", names.SLICE_CHECK),)


def is_settled(api: ObjectApi) -> bool:
    """Return whether `settle` would change nothing."""
    queues = Queues.read(api)
    return not any(_outdated(queues)) and not any(_unused(api, queues))


def settle(api: ObjectApi) -> None:
    """Set the checks on other queues for the same types as on the cluster's own; delete those without types."""
    queues = Queues.read(api)
    for spec in _outdated(queues):
        for obj in render_queue(spec):
            if obj["kind"] == "ClusterQueue":
                api.apply(obj)
    for kind, name in list(_unused(api, queues)):
        with suppress(NotFoundError):
            api.delete(kind, name)


def _outdated(queues: Queues) -> Iterator[QueueSpec]:
    """Yield xpk's queues whose checks have other types, with their new state."""
    for team in queues.teams():
        if maker_of(team) != "xpk":
            continue  # it may be a flavor that is not an accelerator type
        have = as_spec(queues.info(team))
        quotas = tuple(
            replace(quota, queued=quota.shape.name in queues.queued, super_slicing=quota.shape.name in queues.cubes)
            for quota in have.quotas
        )
        if quotas != have.quotas:
            yield replace(have, quotas=quotas)


def _unused(api: ObjectApi, queues: Queues) -> Iterator[tuple[str, str]]:
    """Yield objects that xpk created for checks without types; none if this user may not read them."""
    for kind, name in (*(() if queues.queued else _PROVISIONING), *(() if queues.cubes else _SLICES)):
        with suppress(NotFoundError, MissingToolError, AuthorizationError):
            if maker_of(api.get(kind, name)) == "xpk":
                yield kind, name
