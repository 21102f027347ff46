"""Cost of slices where they have a price: of a workload, and of chip-hours."""

from __future__ import annotations

from pathlib import Path

from xpk.model.specs import Target, WorkloadSpec


def chip_hour_prices(file: Path, target: Target) -> dict[str, float]:
    """Return the price of a chip-hour in US dollars by accelerator family. Raises UsageError for a bad price table."""
    from xpk.capacity.gke.planning import cost

    return cost.chip_hour_prices(file, target.region)


def price(spec: WorkloadSpec, max_cost: float | None) -> str | None:
    """Return the cost of a workload's slices in one line, None where they have no price.

    Raises CapacityError if they cost more than `max_cost` US dollars an hour, or if that is not known.
    """
    if spec.target.region is None:
        return None
    from xpk.capacity.gke.planning.cost import check_cost, cost_of  # other slices have no price

    cost = cost_of(spec.shape, spec.num_slices, region=spec.target.region, on_demand=False)
    if refusal := check_cost(cost, max_cost):
        raise refusal
    return cost.line()
