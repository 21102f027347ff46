"""Slices for a number of tokens, within a deadline and a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from xpk.client import Cluster
from xpk.jobs.create.notice import Notice, ignore
from xpk.jobs.forecast.forecast import Price
from xpk.jobs.search.candidates import RankBy, Space, default_numbers, default_shapes, find_candidates
from xpk.jobs.search.choices import Choice, Goal, Market, evaluate, select, with_details
from xpk.jobs.search.verification import check_compiler_installed, verified
from xpk.jobs.simulation.live import QueueSimulation
from xpk.jobs.simulation.what_if import NewWorkload
from xpk.model import names
from xpk.model.accelerators import SliceShape, all_shapes, find_shape
from xpk.model.closest import did_you_mean
from xpk.model.errors import Problems, UsageError
from xpk.planning.prices import REGION, price_of
from xpk.proc import LocalRunner, Runner
from xpk_shared.goodput.failures import PRIOR_MTBF

MAX_CHIPS = 65_536  # that are searched by default
MAX_TOKENS = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySearch:
    """Slices that train a number of tokens within the limits. Times are bounds, never measured on a TPU."""

    config: str  # configuration of the run
    tokens: float  # tokens to train
    start: str  # start of the run, RFC 3339
    by: str | None  # latest end, RFC 3339; null without one
    budget: float | None  # most US dollars; null without a limit
    rank_by: RankBy  # time that choices are ranked and limited by
    candidates: int  # searched combinations of slices, mesh, batch, rematerialization and products
    choices: list[Choice]  # those of which no other is as fast and as cheap, fastest first
    prices: dict[str, str]  # price of a chip-hour and its source, by type
    notes: list[str]  # limits of the search


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices in US dollars for a chip and hour, by family, such as {"v5p": 4.2}; others are list prices."""

    on_demand: Mapping[str, float]
    spot: Mapping[str, float]
    region: str = REGION
    file: Path | None = None


def search_capacity(
    config: str,
    tokens: float,
    *,
    settings: Sequence[str] = (),
    by: datetime | None = None,
    budget: float | None = None,
    start: datetime | None = None,
    accelerator_types: Sequence[str] = (),
    num_slices: Sequence[int] = (),
    max_chips: int = MAX_CHIPS,
    max_global_batch: int | None = None,
    int8: bool = False,
    rank_by: RankBy = "bound",
    price: Mapping[str, float] | None = None,
    spot_price: Mapping[str, float] | None = None,
    region: str = REGION,
    prices: Path | None = None,
    mtbf_chip_hours: float = PRIOR_MTBF,
    spot_mtbf_chip_hours: float | None = None,
    verify: int = 0,
    cluster: str | None = None,
    queue: str = names.QUEUE,
    runner: Runner | None = None,
    on_progress: Callable[[Notice], None] = ignore,
) -> CapacitySearch:
    """Return the slices that train `tokens` by `by` for at most `budget` US dollars, of which none beats another.

    What `settings` ("section.key=value") set is not searched. `price` and `spot_price` are by family. `verify`: number
    of choices to send through XLA's compiler. `cluster`: add the estimated starts in its `queue`. Raises

    * UsageError: the request is invalid, or no type has a price; `problems` has all of them
    * NotFoundError, AuthorizationError, ConflictError: the cluster does not exist, or its queues cannot be simulated
    * CapacityError: no slices are within the limits
    * MissingToolError: `verify` is set, and libtpu or the trainer is not installed
    """
    asking, begin = runner or LocalRunner(), start or datetime.now(UTC)
    dollars = Prices(on_demand=price or {}, spot=spot_price or {}, region=region, file=prices)
    _check(tokens, begin, by, budget, (*num_slices, max_chips), dollars, spot_mtbf_chip_hours)
    if verify:
        check_compiler_installed()
    if cluster:
        _starts(cluster, queue, ())  # refuses a wrong cluster or queue before the search
    shapes = [find_shape(name) for name in accelerator_types] or default_shapes()
    bought = {shape.name: _markets(shape, dollars, mtbf_chip_hours, spot_mtbf_chip_hours) for shape in shapes}
    priced = [shape for shape in shapes if bought[shape.name]]
    if not priced:
        families = ", ".join(sorted({shape.family for shape in shapes}))
        raise UsageError(
            f"no price of {families} in {region} is known", hint="pass --price FAMILY=DOLLARS or --prices FILE"
        )
    space = Space(
        shapes=priced,
        num_slices=num_slices or default_numbers(),
        max_chips=max_chips,
        max_global_batch=max_global_batch,
        int8=int8,
        rank_by=rank_by,
    )
    arguments = ["--config", config, *(word for setting in settings for word in ("--set", setting))]
    count, estimates = find_candidates(asking, space, arguments, on_progress)
    goal = Goal(tokens=tokens, start=begin, by=by, budget=budget, rank_by=rank_by)
    best = select(evaluate(estimates, lambda shape: bought[shape.name], goal), goal)
    chosen = [*_verified(best[:verify], arguments, on_progress), *best[verify:]]
    chosen = _starts(cluster, queue, chosen) if cluster else chosen
    return CapacitySearch(
        config=config,
        tokens=tokens,
        start=begin.isoformat(timespec="minutes"),
        by=by.isoformat(timespec="minutes") if by else None,
        budget=budget,
        rank_by=rank_by,
        candidates=count * (2 if dollars.spot else 1),
        choices=[with_details(choice, config, settings) for choice in chosen],
        prices={shape.name: _price_words(bought[shape.name]) for shape in priced},
        notes=_notes(shapes, priced, int8=int8, has_largest_batch=max_global_batch is not None),
    )


def _starts(cluster: str, queue: str, choices: Sequence[Choice]) -> list[Choice]:
    """Return choices with their estimated starts in a queue of a cluster."""
    simulation = QueueSimulation.of(Cluster(cluster))
    workloads = [NewWorkload(name="train", slices=one.num_slices, type=one.tpu_type, queue=queue) for one in choices]
    starts = simulation.starts_of(workloads, queue=queue)
    return [replace(choice, start=start) for choice, start in zip(choices, starts, strict=True)]


def _verified(best: Sequence[Choice], arguments: Sequence[str], report: Callable[[Notice], None]) -> list[Choice]:
    """Return choices with the compiler's answers. The compiler gets a process of its own: it imports JAX."""
    answers = []
    for number, choice in enumerate(best, start=1):
        report(Notice(f"Compiling {number} of {len(best)}: {choice.num_slices} x {choice.tpu_type}"))
        answers.append(verified(LocalRunner(), choice, arguments))
    return answers


def _check(
    tokens: float,
    start: datetime,
    by: datetime | None,
    budget: float | None,
    counts: Sequence[int],
    prices: Prices,
    spot_mtbf: float | None,
) -> None:
    """Raise UsageError with all problems of a request."""
    problems = Problems()
    if not 1 <= tokens <= MAX_TOKENS:
        problems.add(f"--tokens must be from 1 to {MAX_TOKENS:g}, got {tokens:g}")
    if by and by <= start:
        problems.add(f"--by {by.isoformat(timespec='minutes')} is not after the start")
    if budget is not None and not 0 <= budget < float("inf"):
        problems.add(f"--budget must be 0 or more, got {budget}")
    if any(count < 1 for count in counts):
        problems.add("--num-slices and --max-chips must be at least 1")
    families = sorted({shape.family for shape in all_shapes()})
    for family, dollars in (*prices.on_demand.items(), *prices.spot.items()):
        if family not in families:
            hint = did_you_mean(_families_by_alias().get(family, family), families)
            problems.add(f"unknown accelerator family '{family}'", hint=hint or f"use one of {', '.join(families)}")
        elif not 0 <= dollars < float("inf"):
            problems.add(f"the price of {family} must be 0 or more, got {dollars}")
    if prices.spot and spot_mtbf is None:
        problems.add("--spot-price requires --spot-mtbf-chip-hours", hint="no figure for spot slices is public")
    problems.check("invalid search", hint="`xpk plan capacity --help`")


def _families_by_alias() -> dict[str, str]:
    """Return the families that have other names, such as v5e."""
    return {name.rpartition("-")[0]: shape.family for shape in all_shapes() for name in shape.other_names}


def _markets(shape: SliceShape, prices: Prices, mtbf: float, spot_mtbf: float | None) -> list[Market]:
    """Return the ways to buy a type that have a price."""
    markets = []
    if price := price_of(shape, prices.on_demand.get(shape.family), prices.region, prices.file):
        markets.append(Market(spot=False, price=price, mtbf_chip_hours=mtbf))
    if shape.family in prices.spot and spot_mtbf:
        spot = Price(dollars=prices.spot[shape.family], source="option")
        markets.append(Market(spot=True, price=spot, mtbf_chip_hours=spot_mtbf))
    return markets


def _price_words(markets: Sequence[Market]) -> str:
    return "; ".join(
        f"{'spot ' if market.spot else ''}{market.price.dollars:g} US dollars ({market.price.source})"
        for market in markets
    )


def _notes(
    shapes: Sequence[SliceShape], priced: Sequence[SliceShape], *, int8: bool, has_largest_batch: bool
) -> list[str]:
    notes = ["the time of a step is a lower bound, never measured on a TPU: it ranks choices and promises nothing"]
    if missing := sorted({shape.family for shape in shapes} - {shape.family for shape in priced}):
        notes.append(f"not searched, without a price: {', '.join(missing)}")
    if not has_largest_batch:
        notes.append("a large batch may need more tokens for the same loss; --max-global-batch limits it")
    if int8:
        notes.append("int8 products change the results of training (docs/models.md)")
    return notes
