"""The functions that the command line and the Python API share above clusters and workloads."""

from __future__ import annotations

from xpk.capacity.provider import provider_of
from xpk.jobs.create.create import read_queue
from xpk.jobs.create.destination import Destination
from xpk.jobs.create.workload import Workload
from xpk.model.specs import WorkloadSpec


def destination_of(cluster: str, request: Workload) -> Destination:
    """Return a cluster as the destination of a workload. Raises NotFoundError without the cluster or its queue."""
    provider = provider_of(cluster)
    api = provider.connect(cluster)
    queue = read_queue(api, request.queue, request.namespace, cluster=cluster)
    return Destination(cluster, provider.target(cluster), queue, api)


def price(spec: WorkloadSpec, max_cost: float | None) -> str | None:
    """Return the cost of a workload's slices in one line, None where they have no price.

    Raises CapacityError if they cost more than `max_cost` US dollars an hour, or if that is not known.
    """
    if spec.target.region is None:
        return None
    from xpk.capacity.gke.cost import check_cost, cost_of  # elsewhere slices have no price

    cost = cost_of(spec.shape, spec.num_slices, region=spec.target.region, on_demand=False)
    if refusal := check_cost(cost, max_cost):
        raise refusal
    return cost.line()
