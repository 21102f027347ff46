"""The measured creates, and the time that their operations need at least."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tools.gke_emulator.options import SECONDS, Options
from xpk.model.accelerators import find_shape

TPU_TYPE = "v5litepod-256"
POLL_SECONDS = 5.0  # of the cloud: xpk's default
SHAPE = find_shape(TPU_TYPE)
USUAL = SECONDS["CREATE_NODE_POOL"] + SHAPE.hosts * Options().seconds_per_node
LONGEST = 506.0  # also an assumption: twice as long, for a slow day
# Users report this limit (terraform-provider-google issues 15205 and 15579, 2023); no document names one.
REPORTED_LIMIT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One create.

    Attributes:
        name: the series that it belongs to.
        pool_seconds: the cloud's time for one node pool.
        cluster_seconds: the cloud's time for the cluster.
        limit: operations that GKE runs at once on a cluster; None: any number.
        at_once: value of `--at-once`; None: the default.
        speed: seconds of the cloud in each real one.
    """

    name: str
    num_slices: int
    pool_seconds: float
    cluster_seconds: float = SECONDS["CREATE_CLUSTER"]
    limit: int | None = None
    at_once: int | None = None
    speed: float = 20.0

    @property
    def is_instant(self) -> bool:
        """Return whether operations take no time."""
        return not self.pool_seconds

    @property
    def operations_seconds(self) -> float:
        """Return the seconds of only the operations: the cluster, then its node pools in rounds."""
        rounds = math.ceil(self.num_slices / min(self.at_once or self.num_slices, self.limit or self.num_slices))
        return self.cluster_seconds + rounds * self.pool_seconds + (1 + rounds) * self.pending

    @property
    def one_after_another_seconds(self) -> float:
        """Return the seconds of the operations in sequence."""
        return replace(self, limit=1).operations_seconds

    @property
    def pending(self) -> float:
        """Return the seconds until an operation starts."""
        return 0.0 if self.is_instant else Options().pending

    def emulation(self) -> Mapping[str, Any]:
        """Return the emulator's options."""
        per_node = 0.0 if self.is_instant else Options().seconds_per_node
        return {
            "speed": self.speed,
            "pending": self.pending,
            "seconds_per_node": per_node,
            "concurrent_operations": self.limit,
            "seconds": {
                "CREATE_CLUSTER": self.cluster_seconds,
                "CREATE_NODE_POOL": self.pool_seconds - SHAPE.hosts * per_node,
            },
        }


def cases() -> Iterator[Case]:
    """Yield the creates in the order of the table."""
    for count in (2, 16, 199):
        yield Case(name="instant", num_slices=count, pool_seconds=0.0, cluster_seconds=0.0, speed=1.0)
    for count in (2, 16, 199):
        yield Case(name="assumed times", num_slices=count, pool_seconds=USUAL)
    yield Case(name="100 at once", num_slices=199, pool_seconds=USUAL, at_once=100)
    yield Case(name="a slow day", num_slices=199, pool_seconds=LONGEST)
    yield Case(name="5 at once allowed", num_slices=199, pool_seconds=USUAL, limit=REPORTED_LIMIT, speed=60.0)
