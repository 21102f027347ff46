"""`xpk plan`: goodput and slices of runs that do not exist yet."""

from __future__ import annotations

import click

from xpk.cli.google_xpk import Group

# Imported when they are used.
_MODULES = {
    "capacity": "xpk.cli.plan.capacity:capacity",
    "goodput": "xpk.cli.plan.goodput:goodput",
}


@click.group(cls=Group, modules=_MODULES)
def plan() -> None:
    """Forecast goodput, and choose slices for a run."""
