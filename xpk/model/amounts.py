"""Amounts of slices in flags: `4`, `v5litepod-16=4`, `64chips`, `25%`, `none`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.errors import UsageError

Amounts = dict[str, float | None]  # slices by type; None is no limit

_AMOUNT = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>chips?|%|)")
_NO_LIMIT = "none"


def parse_amounts(
    flag: str, texts: Sequence[str], slices: Mapping[str, float], problems: list[str], *, limit: bool = False
) -> Amounts:
    """Return the amounts of a flag by type; problems are added to `problems`, one line each.

    `slices`: the cluster's number of slices of each type. `limit`: `none` is a valid amount.
    """
    amounts: Amounts = {}
    for text in (part.strip() for argument in texts for part in argument.split(",")):
        name, _, amount = text.rpartition("=")
        shape = _shape(flag, name, slices, problems)
        if shape is None:
            continue
        if shape.name in amounts:
            problems.append(f"{flag} is given twice for {shape.name}")
        if limit and amount == _NO_LIMIT:
            amounts[shape.name] = None
        elif (number := _slices(amount, shape, slices[shape.name])) is None:
            problems.append(f"{flag} '{text}' is not an amount: use 4 (slices), {4 * shape.chips}chips or 25%")
        elif number != int(number):
            problems.append(f"{flag} '{text}' is {number:.4g} slices of {shape.name}; only whole ones can be used")
        else:
            amounts[shape.name] = int(number)
    return amounts


def amounts_text(amounts: Mapping[str, float | None]) -> str:
    """Return amounts in the form that flags accept."""
    parts = (f"{name}={_NO_LIMIT if amount is None else f'{amount:g}'}" for name, amount in amounts.items())
    return ",".join(parts)


def _shape(flag: str, name: str, slices: Mapping[str, float], problems: list[str]) -> SliceShape | None:
    """Return the type of an amount; it may be omitted if there is only one."""
    types = ", ".join(slices) or "none"
    if not name and len(slices) != 1:
        problems.append(f"{flag}: no type given; the cluster has {types}: pass {flag} TYPE=N")
        return None
    try:
        shape = find_shape(name or next(iter(slices)))
    except UsageError as error:
        problems.append(f"{flag}: {error.message}; the cluster has {types}")
        return None
    if shape.name not in slices:
        problems.append(f"{flag}: the cluster has no slices of {shape.name}; it has {types}")
        return None
    return shape


def _slices(amount: str, shape: SliceShape, total: float) -> float | None:
    match = _AMOUNT.fullmatch(amount)
    if not match:
        return None
    number = float(match["number"])
    if match["unit"] == "%":
        return number * total / 100
    return number / shape.chips if match["unit"] else number
