"""Node pools that GKE creates itself."""

from __future__ import annotations

from tests.capacity.gke.site import Site


def add_pool(site: Site, name: str, topology: str) -> None:
    """Create a node pool as GKE's autoscaler does."""
    pool = {
        "name": name,
        "initial_node_count": 4,
        "config": {"machine_type": "ct5lp-hightpu-4t"},
        "placement_policy": {"type": "COMPACT", "tpu_topology": topology},
        "autoscaling": {"enabled": True, "autoprovisioned": True, "max_node_count": 4},
    }
    parent = "projects/p/locations/us-central1/clusters/c"
    site.provider()._google.call("create_node_pool", {"parent": parent, "node_pool": pool})
    while site.pools()[name] != "RUNNING":
        pass
