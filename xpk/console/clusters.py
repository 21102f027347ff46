"""The clusters that a console shows."""

from __future__ import annotations

from collections.abc import Sequence

from xpk.capacity.provider import provider_of
from xpk.client import Cluster
from xpk.console.cluster_reader import ClusterReader
from xpk.jobs.output.roots import OutputRoots


def open_clusters(names: Sequence[str], namespace: str | None, output_root: str | None) -> list[ClusterReader]:
    """Return readers of clusters, which connect when they read. Raises NotFoundError for an unknown one.

    `namespace`: None for all of them; `output_root`: that of --output-root.
    """
    for name in names:
        provider_of(name)
    return [_open(Cluster(name), namespace, output_root) for name in names]


def _open(cluster: Cluster, namespace: str | None, output_root: str | None) -> ClusterReader:
    return ClusterReader(
        cluster.name,
        lambda: cluster.api,
        OutputRoots(lambda: cluster.target, output_root),
        namespace,
    )
