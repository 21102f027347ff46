"""Queues whose workloads Kueue dispatches to other clusters, where what xpk creates beside a JobSet is missing."""

from __future__ import annotations

from collections.abc import Iterable

from xpk.api.base import ObjectApi
from xpk.model.errors import AuthorizationError, NotFoundError, UsageError

_CONTROLLER = "kueue.x-k8s.io/multikueue"  # of such admission checks


def check_not_dispatched(api: ObjectApi, queue: str, checks: Iterable[str], *, cluster: str) -> None:
    """Raise UsageError if one of a queue's admission checks is MultiKueue's. Each check is a request.

    Checks that may not be read are ignored. MultiKueue copies the JobSet, but not the Secret that its pods wait for.
    """
    for name in checks:
        try:
            check = api.get("AdmissionCheck", name)
        except (AuthorizationError, NotFoundError):
            continue
        if check["spec"].get("controllerName") == _CONTROLLER:
            raise UsageError(
                f"queue '{queue}' of cluster '{cluster}' dispatches workloads to other clusters by MultiKueue "
                f"(admission check '{name}'), which does not copy the Secret of their hosts",
                hint="use another --queue, and --clusters for a workload that may run on several clusters",
            )
