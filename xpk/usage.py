"""Use of a cluster's chips: what connects the ledger with the clusters that this machine knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from xpk.api.base import ObjectApi
from xpk.capacity.provider import provider_of
from xpk.capacity.state import state_of
from xpk.cost import LIST, chip_hour_prices
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.usage import figures, reading
from xpk.jobs.usage import trace as traces
from xpk.jobs.usage.figures import Usage
from xpk.jobs.usage.reading import Source
from xpk.jobs.usage.trace import Trace
from xpk.model.errors import NotFoundError, UsageError
from xpk.model.specs import Target
from xpk.model.usage import MICROSECONDS

_DAYS = 7  # by default


def usage_source(cluster: str, *, api: ObjectApi | None = None, target: Callable[[], Target] | None = None) -> Source:
    """Return a cluster with its usage ledger; `api` and `target` if they are known. Raises NotFoundError."""
    roots = OutputRoots(cache(target or (lambda: provider_of(cluster).target(cluster))))
    return Source(api or provider_of(cluster).connect(cluster), cluster, roots, state_of("usage"))


def usage_of(
    source: Source,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    by: Sequence[str] = ("team",),
    prices: str | Path | None = None,
) -> Usage:
    """Return the use of a cluster's chips; see `xpk.Cluster.usage`."""
    columns = figures.parse_columns(by if isinstance(by, str) else ",".join(by))
    first, last = _interval(since, until, source.clock())
    target = source.roots.target()
    chip_hour_prices((), prices, target)  # refuses a file that is not a price table before anything is read
    ledger = reading.read(source, since=first, until=last)
    table = chip_hour_prices(figures.families_of(ledger), prices, target)
    if prices is not None and (missing := [price.family for price in table if price.dollars is None]):
        name = "the built-in table" if prices == LIST else str(prices)
        region = "in this region" if target.region else "that is the same in all regions"
        ledger.problems.append(f"the cost is unknown: {name} has no price of {', '.join(missing)} {region}")
    return figures.usage_of(ledger, source.cluster, first, last, columns, table)


def trace_of(
    source: Source, *, since: datetime | None = None, until: datetime | None = None
) -> tuple[Trace, list[str]]:
    """Return the workloads of a cluster in an interval as a trace, and what is missing in the ledger.

    Raises NotFoundError if there were none.
    """
    first, last = _interval(since, until, source.clock())
    ledger = reading.read(source, since=first, until=last)
    trace = traces.trace_of(ledger, first, last)
    if not trace.lines:
        raise NotFoundError(
            f"the usage ledger of '{source.cluster}' has no workloads of a queue in this interval",
            hint="`xpk usage --by workload`",
        )
    return trace, ledger.problems


def _interval(since: datetime | None, until: datetime | None, now: int) -> tuple[int, int]:
    """Return begin and end in Unix microseconds, the end not after `now`. Raises UsageError for an empty interval."""
    present = datetime.fromtimestamp(now / MICROSECONDS, UTC)
    end = min((until or present).astimezone(), present)
    begin = (since or end - timedelta(days=_DAYS)).astimezone()
    if begin >= end:
        raise UsageError("since must be before until and before now")
    return round(begin.timestamp() * MICROSECONDS), round(end.timestamp() * MICROSECONDS)
