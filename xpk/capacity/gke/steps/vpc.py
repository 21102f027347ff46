"""Compute Engine resources of a cluster: workload policies and data networks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from xpk.capacity.gke.cloud.client import Google, is_existing, is_not_ready
from xpk.capacity.gke.cloud.failure import of_compute
from xpk.model.errors import AuthorizationError, NotFoundError, XpkError

Dict = dict[str, Any]
Again = Callable[[float], None]
_PLACES = {"network": "global/networks", "subnetwork": "regions/{}/subnetworks", "firewall": "global/firewalls"}
_ROLES = "for networks also roles/compute.networkAdmin and roles/compute.securityAdmin"


class Vpc:
    """Compute Engine resources in one project and region. `again(start)` pauses, or raises TimedOutError."""

    def __init__(self, google: Google, project: str, region: str, again: Again) -> None:
        self._google, self._again = google, again
        self._project, self._region = f"projects/{project}", region

    def make_policy(self, body: Mapping[str, Any]) -> None:
        """Create a resource policy. Raises XpkError."""
        self._make(f"{self._project}/regions/{self._region}/resourcePolicies", body)

    def make_network(self, bodies: Mapping[str, Mapping[str, Any]]) -> None:
        """Create a data network with its subnetwork and firewall rule, unless they exist. Raises XpkError."""
        with _roles():
            for part, place in _PLACES.items():
                self._make(f"{self._project}/{place.format(self._region)}", bodies[part])

    def remove_network(self, names: tuple[str, str, str]) -> None:
        """Delete a data network with all its resources, once it is unused. Raises XpkError."""
        for place, name in reversed(list(zip(_PLACES.values(), names, strict=True))):
            path = f"{self._project}/{place.format(self._region)}/{name}"
            with _roles(), suppress(NotFoundError):
                self._retried(partial(self._google.compute, path, delete=True))

    def _make(self, collection: str, body: Mapping[str, Any]) -> None:
        try:
            self._retried(lambda: self._google.compute(collection, dict(body)))
        except XpkError as error:
            if not is_existing(error):
                raise

    def _retried(self, ask: Callable[[], Dict]) -> None:
        """Start an operation, retry while a resource is not ready or in use, and wait until it is done."""
        start = time.monotonic()
        while True:
            try:
                operation = ask()
                break
            except XpkError as error:
                if not is_not_ready(error):
                    raise
            self._again(start)
        path = str(operation.get("selfLink", "")).partition("/compute/v1/")[2]
        while path and operation.get("status") != "DONE":
            self._again(start)
            operation = self._google.compute(path)
        if failure := of_compute(operation):
            raise failure


@contextmanager
def _roles() -> Iterator[None]:
    """Add the required network roles to a permission error."""
    try:
        yield
    except AuthorizationError as error:
        raise AuthorizationError(error.message, hint=f"{error.hint}; {_ROLES}") from error
