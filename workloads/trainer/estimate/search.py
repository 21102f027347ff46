"""Search of the mesh, batch, rematerialization and products of a step, in closed form and without JAX.

For each TPU type, number of slices and choice of int8 products, the search keeps the choice with the most tokens per
second. Chips cost the same whatever they compute, so the fastest choice is also the cheapest.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from trainer.config import Config
from trainer.errors import FatalError, Problem
from trainer.estimate.accelerators import Slice
from trainer.estimate.closed_form import estimate
from trainer.estimate.memory import memory
from trainer.parallel import layout

REMAT = ("none", "dots", "attention", "full")  # less recomputation first


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Values to combine. A number 0 keeps what the configuration has."""

    slices: Sequence[Slice]
    num_slices: Sequence[int]
    tp: Sequence[int] = (1, 2, 4, 8, 16)
    replicas: Sequence[int] = (1, 2)  # copies of the parameters in a slice, which mesh.dp counts in all slices
    batch_per_chip: Sequence[int] = (1, 2, 3, 4, 6, 8, 12, 16)
    remat: Sequence[str] = REMAT
    products: Sequence[str] = ("",)  # values of quant.matmuls
    max_chips: int = 2**31
    max_global_batch: int = 2**31  # examples in a step
    rank_by: str = "bound"  # time of a step: its lower bound, or the expected one; the other decides between equals

    def keeping(self, config: Config, keys: Collection[str]) -> "Grid":
        """Return the grid without other values of these settings ("section.key") than those of `config`."""
        return dataclasses.replace(
            self,
            tp=(0,) if "mesh.tp" in keys else self.tp,
            replicas=(0,) if "mesh.dp" in keys else self.replicas,
            batch_per_chip=(0,) if {"data.global_batch", "data.batch_per_chip"} & {*keys} else self.batch_per_chip,
            remat=(config.model.remat,) if "model.remat" in keys else self.remat,
        )

    def sizes(self) -> Iterator[tuple[Slice, int]]:
        """Yield the combinations of types and numbers of slices within `max_chips`."""
        for slice_, number in itertools.product(self.slices, self.num_slices):
            if slice_.chips * number <= self.max_chips:
                yield slice_, number

    @property
    def candidates(self) -> int:
        """Number of combinations."""
        choices = (self.tp, self.replicas, self.batch_per_chip, self.remat, self.products)
        combinations = 1
        for values in choices:
            combinations *= len(values)
        return combinations * sum(1 for _ in self.sizes())


def search(config: Config, grid: Grid) -> dict[str, Any]:
    """Return the number of `candidates`, and the `best` estimate of each size and choice of products that fits.

    Each has the fields of an estimate, `tokens_per_step`, and `settings`: what differs from `config`, as
    "section.key=value". Raises FatalError if the model has no estimate, or for settings that are invalid on any chips.
    """
    if config.model.family != "decoder":
        message = f"estimates require model.family=decoder, got {config.model.family}"
        raise FatalError(Problem(message, "Use a decoder"))
    variants = [_with_products(config, products) for products in grid.products]
    if problems := [problem for variant in variants for problem in layout.range_problems(variant)]:
        raise FatalError(*dict.fromkeys(problems))
    best = [
        found
        for slice_, number in grid.sizes()
        for products in grid.products
        if (found := _best(config, slice_, number, products, grid))
    ]
    return {"candidates": grid.candidates, "best": best}


def _best(config: Config, slice_: Slice, number: int, products: str, grid: Grid) -> dict[str, Any] | None:
    """Return the best estimate on these slices, None if nothing fits."""
    estimates = (
        _with_settings(estimate(variant, slice_, number), config, variant)
        for variant in _fitting(config, slice_, number, products, grid)
    )
    keys = ["step_seconds", "expected_step_seconds"]
    if grid.rank_by == "expected":
        keys.reverse()
    return max(estimates, key=lambda one: [one["global_batch"] / one[key] for key in keys], default=None)


def _with_products(config: Config, products: str) -> Config:
    return dataclasses.replace(config, quant=dataclasses.replace(config.quant, matmuls=products))


def _with_settings(figures: dict[str, Any], config: Config, variant: Config) -> dict[str, Any]:
    tokens = figures["global_batch"] * config.model.seq_len
    return figures | {"settings": _settings(config, variant), "tokens_per_step": tokens}


def _fitting(config: Config, slice_: Slice, number: int, products: str, grid: Grid) -> Iterator[Config]:
    """Yield the variants that can run and fit: for each mesh and batch the one that recomputes least.

    Both of its times are the shortest, because recomputation adds arithmetic and transfers.
    """
    chips = layout.Chips(number, slice_.hosts, slice_.chips_per_host)
    available = slice_.chip.hbm_gib * 2**30
    config = _with_products(config, products)
    for tp, replicas in itertools.product(grid.tp, grid.replicas):
        mesh = config.mesh
        if tp:
            mesh = dataclasses.replace(mesh, tp=tp)
        if replicas:
            mesh = dataclasses.replace(mesh, dp=number * replicas if replicas > 1 or mesh.dp else 0)
        for batch in grid.batch_per_chip:
            data = dataclasses.replace(config.data, global_batch=0, batch_per_chip=batch) if batch else config.data
            variant = dataclasses.replace(config, mesh=mesh, data=data)
            sizes = layout.layout(variant, chips)
            if sizes.global_batch > grid.max_global_batch or layout.size_problems(variant, chips):
                continue
            for remat in grid.remat:
                recomputing = dataclasses.replace(variant, model=dataclasses.replace(config.model, remat=remat))
                if memory(recomputing, sizes).peak <= available:
                    yield recomputing
                    break


def _settings(config: Config, variant: Config) -> list[str]:
    """Return the settings that the search has changed, as arguments of `--set`."""
    keys = ("mesh.tp", "mesh.dp", "data.global_batch", "data.batch_per_chip", "model.remat", "quant.matmuls")
    settings = []
    for key in keys:
        section, name = key.split(".")
        value = getattr(getattr(variant, section), name)
        if value != getattr(getattr(config, section), name):
            settings.append(f"{key}={value}")
    return settings
