"""Prices of chips: list prices of Google Cloud, or those that the user gives."""

from __future__ import annotations

from pathlib import Path

from xpk.capacity.gke.planning.cost import cost_of
from xpk.jobs.forecast.forecast import Price
from xpk.model.accelerators import SliceShape

REGION = "us-central1"  # of the list prices, unless another one is given


def price_of(shape: SliceShape, price: float | None, region: str, prices: Path | None = None) -> Price | None:
    """Return the price of a chip for an hour: the given one, or the list price of a region; None if it is unknown.

    Raises UsageError if `prices` is not a price table.
    """
    if price is not None:
        return Price(dollars=price, source="option")
    cost = cost_of(shape, 1, region=region, on_demand=True, file=prices)
    if cost.dollars is None:
        return None
    return Price(dollars=cost.dollars / cost.chips, source=f"list price in {region} of {cost.as_of}: {cost.source}")
