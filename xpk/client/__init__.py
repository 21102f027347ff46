"""The Python API: clusters, and the workloads on them. `xpk` exports it; nothing here prints."""

from xpk.client.cluster import Cluster, WorkloadHandle, destination_of
from xpk.client.creation import clusters, create_cluster

__all__ = ["Cluster", "WorkloadHandle", "clusters", "create_cluster", "destination_of"]
