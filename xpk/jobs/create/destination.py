"""The cluster and the queue that a new workload goes to."""

from __future__ import annotations

from dataclasses import dataclass

from xpk.api.base import ObjectApi
from xpk.jobs.create.create import Queue
from xpk.model.errors import UsageError
from xpk.model.specs import Target


@dataclass(frozen=True, slots=True)
class Destination:
    """A cluster, how workloads run on it, and the queue there. `api` is None if the cluster cannot be reached."""

    cluster: str
    target: Target
    queue: Queue
    api: ObjectApi | None

    def reached(self) -> ObjectApi:
        """Return the API of a cluster that was reached. Raises UsageError for any other."""
        if self.api is None:
            raise UsageError(f"cluster '{self.cluster}' was not reached")
        return self.api
