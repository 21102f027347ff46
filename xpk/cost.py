"""Cost of slices where they have a price: of a workload, and of chip-hours."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from xpk.model.specs import Target, WorkloadSpec
from xpk.model.usage import ChipHourPrice

LIST = "list"  # names the built-in list prices instead of the file of a price table


def chip_hour_prices(families: Iterable[str], prices: str | Path | None, target: Target) -> list[ChipHourPrice]:
    """Return the prices of accelerator families: of a table, or list prices; none by default without a region.

    Raises UsageError if `prices` is not the file of a price table.
    """
    if prices is None and target.region is None:
        return []
    from xpk.capacity.gke.planning import cost

    return cost.chip_hour_prices(families, target.region, None if prices in (None, LIST) else Path(str(prices)))


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
