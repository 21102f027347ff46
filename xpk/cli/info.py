"""`xpk info`: a cluster's LocalQueues and ClusterQueues."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import click

from xpk.capacity.provider import provider_of
from xpk.capacity.queues.reading import QueueInfo, Queues
from xpk.cli.google_xpk import ClusterCommand
from xpk.cli.options import cluster_option, output_option
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console, echo
from xpk.cli.terminal.tables import Column
from xpk.model.amounts import amounts_text

_COUNTS = (
    Column("ADMITTED", lambda row: row.admitted),
    Column("PENDING", lambda row: row.pending),
)
_USAGE = (
    Column("USED", lambda row: row.used.replace(",", ", "), wrap=True),
    Column("QUOTA", lambda row: row.quota.replace(",", ", "), wrap=True),
)
LOCAL = (
    Column("LOCAL QUEUE", lambda row: row.name, cut=16),
    Column("NAMESPACE", lambda row: row.namespace, cut=12),
    Column("CLUSTER QUEUE", lambda row: row.cluster_queue, cut=16),
    *_COUNTS,
)
CLUSTER = (Column("CLUSTER QUEUE", lambda row: row.name, cut=16), *_COUNTS, *_USAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueue:
    """A LocalQueue of Kueue."""

    name: str  # name, unique in its namespace
    namespace: str  # Kubernetes namespace
    cluster_queue: str  # name of its ClusterQueue
    admitted: int  # number of admitted workloads
    pending: int  # number of waiting workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterQueue:
    """A ClusterQueue of Kueue."""

    name: str  # name, unique in the cluster
    admitted: int  # number of admitted workloads
    pending: int  # number of waiting workloads
    used: str  # slices in use, such as v5litepod-8=1
    quota: str  # slices of its quota, such as v5litepod-8=2


@click.command(cls=ClusterCommand)
@click.option("--localqueue", is_flag=True, help="Show only LocalQueues.")
@click.option("--clusterqueue", is_flag=True, help="Show only ClusterQueues.")
@click.option("-n", "--namespace", metavar="NAME", help="Show only LocalQueues of this namespace.")
@cluster_option
@output_option
@click.pass_obj
def info(
    console: Console,
    localqueue: bool,
    clusterqueue: bool,
    namespace: str | None,
    cluster: str | None,
    output: str | None,
) -> None:
    """Show a cluster's LocalQueues and ClusterQueues, their workload counts, and quotas and use in slices.

    \b
      xpk info --cluster prod
      xpk info --cluster prod --clusterqueue
    """
    console, place = console.choosing(output), the_cluster(cluster)
    queues, both = Queues.read(provider_of(place).connect(place)), localqueue == clusterqueue
    rows_of: dict[str, list[Any]] = {}
    if both or localqueue:
        rows = map(_local, queues.local_queues)
        rows_of["local_queues"] = [row for row in rows if namespace in (None, row.namespace)]
    if both or clusterqueue:
        rows_of["cluster_queues"] = [_cluster(info) for info in queues.infos()]
    if console.is_data:
        console.data({kind: [asdict(row) for row in rows] for kind, rows in rows_of.items()})
        return
    columns = {"local_queues": LOCAL, "cluster_queues": CLUSTER}
    texts = [console.table(rows, columns[kind]) or f"no {kind.replace('_', ' ')}" for kind, rows in rows_of.items()]
    echo("\n\n".join(texts))


def _local(obj: dict[str, Any]) -> LocalQueue:
    status = obj.get("status") or {}
    return LocalQueue(
        name=obj["metadata"]["name"],
        namespace=obj["metadata"]["namespace"],
        cluster_queue=obj["spec"].get("clusterQueue", ""),
        admitted=status.get("admittedWorkloads", 0),
        pending=status.get("pendingWorkloads", 0),
    )


def _cluster(queue: QueueInfo) -> ClusterQueue:
    return ClusterQueue(
        name=queue.cluster_queue,
        admitted=queue.admitted,
        pending=queue.pending,
        used=amounts_text({share.type: share.used for share in queue.shares}) or "-",
        quota=amounts_text({share.type: share.quota for share in queue.shares}) or "-",
    )
