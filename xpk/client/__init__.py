"""The Python API: clusters, and the workloads on them. `xpk` exports it; nothing here prints."""

from xpk.client.cluster import Cluster, clusters, create_cluster, destination_of
from xpk.client.workload import WorkloadHandle

__all__ = ["Cluster", "WorkloadHandle", "clusters", "create_cluster", "destination_of"]
