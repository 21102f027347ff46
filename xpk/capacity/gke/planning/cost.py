"""Cost of slices: always in chip-hours, in dollars where the price table has a price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from xpk.model.accelerators import SliceShape, all_shapes
from xpk.model.errors import CapacityError, UsageError
from xpk.model.usage import ChipHourPrice
from xpk.model.yaml_loader import LOADER
from xpk.storage.text import read_text


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of slices per hour."""

    chips: int  # chips of all slices
    dollars: float | None  # on-demand list price in US dollars; null if unknown
    bound: bool  # whether the price is an upper bound
    source: str  # source of the price
    as_of: str  # date of the price
    confirmed: bool = True  # whether more than one source has this price
    most_chips: int | None = None  # chips with all slices that GKE may add; null if it adds none
    most_dollars: float | None = None  # price with all slices that GKE may add; null if it adds none

    def line(self) -> str:
        """Return the cost as a line of text."""
        line = f"cost: {self._hours(self.chips, self.dollars)}"
        if self.dollars is None:
            line += "; no list price known"
        else:
            line += f" on demand ({'' if self.confirmed else 'unconfirmed '}list price of {self.as_of}: {self.source})"
        if self.most_chips is None:
            return line
        return f"{line}; with all that GKE may add: {self._hours(self.most_chips, self.most_dollars)}"

    def _hours(self, chips: int, dollars: float | None) -> str:
        hours, least = f"{chips:,} chip-hours an hour", "at most " if self.bound else ""
        return hours if dollars is None else f"{hours}, {least}{dollars:,.2f} US dollars an hour"


def cost_of(
    shape: SliceShape,
    num_slices: int,
    *,
    region: str,
    on_demand: bool,
    file: Path | None = None,
    most_slices: int | None = None,
) -> Cost:
    """Return the cost of slices per hour. Spot and flex-start prices vary, but stay below the on-demand price.

    `most_slices`: including those that GKE may add. Raises UsageError if `file` is not a price table.
    """
    table = _table(file)
    price = (table["chip_hour"].get(shape.family) or {}).get(region)
    chips, max_chips = num_slices * shape.chips, None if most_slices is None else most_slices * shape.chips
    source, as_of = _origin(table, shape.family, shape.kind)
    dollars = None if price is None else chips * price
    most_dollars = None if price is None or max_chips is None else max_chips * price
    confirmed = shape.family not in table.get("unconfirmed", ())
    return Cost(chips, dollars, not on_demand, source, as_of, confirmed, max_chips, most_dollars)


def chip_hour_prices(families: Iterable[str], region: str | None, file: Path | None = None) -> list[ChipHourPrice]:
    """Return the prices of accelerator families in a region, from `file` or the built-in table.

    Without a region, a family has a price if it is the same in all regions. Raises UsageError if `file` is not a price
    table.
    """
    table, prices = _table(file), []
    for family in families:
        by_region = table["chip_hour"].get(family) or {}
        known = {price for name, price in by_region.items() if region in (None, name)}
        source, as_of = _origin(table, family, next((s.kind for s in all_shapes() if s.family == family), ""))
        prices.append(
            ChipHourPrice(
                family=family,
                dollars=float(known.pop()) if len(known) == 1 else None,
                region=region,
                source=source,
                as_of=as_of,
                confirmed=family not in table.get("unconfirmed", ()),
            )
        )
    return prices


def _origin(table: Mapping[str, Any], family: str, kind: str) -> tuple[str, str]:
    """Return source and date of a family's price: those of the family, else of its kind (tpu or gpu), else of all."""
    origin = []
    for key, default in (("sources", "no source given"), ("as_of", "?")):
        value = table.get(key)
        if isinstance(value, Mapping):
            value = value.get(family) or value.get(kind)
        origin.append(str(value or default))
    return origin[0], origin[1]


def check_cost(cost: Cost, max_cost: float | None) -> CapacityError | None:
    """Return why the cost exceeds the limit; an unknown price exceeds any limit."""
    if max_cost is None or (cost.dollars is not None and max(cost.dollars, cost.most_dollars or 0) <= max_cost):
        return None
    if cost.dollars is None:
        return CapacityError(
            f"--max-cost {max_cost:g}: the price is unknown ({cost.source})",
            hint="pass a price table with --prices FILE, or omit --max-cost",
        )
    if cost.most_dollars is not None and cost.dollars <= max_cost:
        return CapacityError(
            f"with all that GKE may add it costs {cost.most_dollars:,.2f} US dollars an hour on demand; "
            f"--max-cost is {max_cost:g}",
            hint="lower --autoprovisioning-max-chips, choose another --tpu-type, or raise --max-cost",
        )
    return CapacityError(
        f"it costs {cost.dollars:,.2f} US dollars an hour on demand; --max-cost is {max_cost:g}",
        hint="request fewer slices, choose another --tpu-type, or raise --max-cost",
    )


def _table(file: Path | None) -> Mapping[str, Any]:
    default_file = resources.files("xpk.capacity.gke.planning") / "prices.yaml"
    try:
        if file:
            text = read_text(file, what="the price table", hint="pass the path of a price table")
        else:
            text = default_file.read_text(encoding="utf-8")
        # The parser in C is eight times as fast, but what is nested too deep ends the process.
        table: Any = yaml.load(text, Loader=yaml.SafeLoader if file else LOADER)  # noqa: S506  # safe loaders
        numbers = [price for prices in table["chip_hour"].values() for price in prices.values()]
        if not all(isinstance(price, int | float) and 0 <= price < 1e9 for price in numbers):
            raise ValueError("a price is not a number")
        entries: Mapping[str, Any] = table
    except (OSError, yaml.YAMLError, LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{file} is not a price table: {reason}", hint=f"see {default_file} for the form") from error
    return entries
