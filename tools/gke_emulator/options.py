"""Options of the emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.gke_emulator.faults import Fault

# Seconds that operations take. Measured figures are rare in public: Google's own documents say "several minutes".
# Terraform's logs in public repositories have 5 min 25 s, 6 min 43 s and 9 min 22 s for regional clusters, and 1 to 2
# minutes for pools of a few CPU nodes. For pools of many TPU hosts there is no source: theirs are assumed.
SECONDS = {
    "CREATE_CLUSTER": 420.0,
    "DELETE_CLUSTER": 240.0,
    "UPDATE_CLUSTER": 120.0,
    "UPGRADE_MASTER": 600.0,
    "CREATE_NODE_POOL": 180.0,
    "DELETE_NODE_POOL": 150.0,
    "UPGRADE_NODES": 180.0,
    "SET_NODE_POOL_SIZE": 90.0,
    "SET_NODE_POOL_MANAGEMENT": 5.0,
}
VERSIONS = {  # newest first, by release channel
    "RAPID": ("1.36.0-gke.3712000", "1.35.1-gke.1396000", "1.34.3-gke.1051000"),
    "REGULAR": ("1.34.3-gke.1051000", "1.33.5-gke.2118000"),
    "STABLE": ("1.33.5-gke.2118000", "1.32.9-gke.1728000"),
    "EXTENDED": ("1.33.5-gke.2118000", "1.31.14-gke.1033000"),
}


@dataclass(frozen=True, slots=True)
class Options:
    """Knobs of an emulator.

    Attributes:
        state: folder that keeps everything between two lives of the emulator; None: memory only.
        port, http_port: 0 for free ones.
        speed: emulated seconds in each real one.
        seconds: how long operations take in emulated seconds, by type, where not as in `SECONDS`.
        seconds_per_node: what each node adds to operations that make or end nodes.
        pending: how long an operation is PENDING first, in emulated seconds.
        latency: of each call, in emulated seconds.
        concurrent_operations: on one cluster; more are refused with RESOURCE_EXHAUSTED (HTTP's 429).
        parallel_pools: whether operations on different node pools of one cluster may run at once.
        nodes_per_pool: in one zone.
        nodes_per_cluster: in all.
        quotas: limits per region by metric, where not plenty. A TPU family's is TPUS_PER_TPU_FAMILY:CT6E.
        locations: regions with the last letters of their zones; others do not exist.
        stock: instances that there are of a machine type, all zones together, where not without end.
        faults, seed: see `tools.gke_emulator.faults`.
        api_server: kubeconfig of a real API server behind every cluster.
        kwok: whether nodes carry KWOK's annotation.
        project_number: of every project.
    """

    state: Path | None = None
    port: int = 0
    http_port: int = 0
    speed: float = 1000.0
    seconds: Mapping[str, float] = field(default_factory=dict)
    seconds_per_node: float = 1.0
    pending: float = 2.0
    latency: float = 0.0
    concurrent_operations: int | None = None
    parallel_pools: bool = True
    nodes_per_pool: int = 1000
    nodes_per_cluster: int = 15_000
    quotas: Mapping[str, float] = field(default_factory=dict)
    locations: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {
            "us-central1": "abcf", "us-central2": "b", "us-east1": "bcd", "us-east5": "abc", "us-west1": "abc",
            "us-west4": "abc", "us-south1": "abc", "europe-west4": "abc", "asia-northeast1": "abc",
        }
    )  # fmt: skip
    stock: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    api_server: Path | None = None
    kwok: bool = True
    project_number: int = 123456789012

    def zones(self, region: str) -> list[str]:
        """Return the zones of a region; empty if the region does not exist."""
        return [f"{region}-{end}" for end in self.locations.get(region, "")]
