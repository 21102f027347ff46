"""Requests of `xpk cluster create` and `resize`, parsed and checked; all problems are reported together."""

from __future__ import annotations

from typing import Any

import click

from xpk.capacity import user_config
from xpk.capacity.clusters import plan_create
from xpk.capacity.plan.plan import Plan
from xpk.capacity.provider import provider_names
from xpk.cli.cluster.provider_options import chosen_provider, completed, given_flags, read_options
from xpk.cli.options import the_name
from xpk.cli.terminal.output import Console
from xpk.model.accelerators import find_shape
from xpk.model.errors import Problems, UsageError
from xpk.model.specs import ClusterSpec

Counted = tuple[int | None, int | None, int | None]  # --num-slices, --num-nodes, --num-cubes

_UNNAMED = "unnamed"  # placeholder for a missing name while the rest is checked


def parse_create_request(
    name: tuple[str | None, str | None],
    accelerator_type: str | None,
    counts: Counted,
    provider: str | None,
    flags: dict[str, Any],
    *,
    dry_run: bool = False,
) -> tuple[ClusterSpec, Plan]:
    """Return the spec and the plan of a new cluster. Raises UsageError with all problems.

    `name`: the values of NAME and --cluster. `dry_run`: values that only a real run needs may be missing.
    """
    problems = Problems()
    cluster_name = problems.read(_UNNAMED, the_name, "cluster", *name)
    num_slices, num_nodes = problems.read(counts[:2], _without_cubes, counts, accelerator_type)
    kind = chosen_provider(provider, given_flags(flags), user_config.load().get("provider", "local"))
    return plan_create(
        cluster_name,
        accelerator_type,
        num_slices,
        num_nodes=num_nodes,
        provider=kind,
        options=completed(read_options(kind, flags, problems)) if kind in provider_names() else None,
        problems=problems,
        is_dry=dry_run,
    )


def parse_resize_request(
    name: tuple[str | None, str | None], num_slices: int | None, flags: dict[str, Any]
) -> tuple[str, int]:
    """Return the cluster and its new number of slices. Raises UsageError with all problems, also of the options."""
    problems = Problems()
    read_options("gke", flags, problems)  # the only provider that has options of `resize`
    cluster_name = problems.read(_UNNAMED, the_name, "cluster", *name)
    count = problems.read(1, _count, num_slices)
    problems.check(f"cluster '{cluster_name}' cannot be resized", hint="see `xpk cluster resize --help`")
    return cluster_name, count


def _without_cubes(counts: Counted, accelerator_type: str | None) -> tuple[int | None, int | None]:
    """Return the numbers of slices and of nodes; slices of TPU types have a fixed number of nodes."""
    num_slices, num_nodes, num_cubes = counts
    if num_cubes is not None:
        if num_slices not in (None, num_cubes):
            raise UsageError("--num-cubes and --num-slices differ", hint="pass one of them")
        num_slices = num_cubes
    if num_nodes is not None and _is_tpu(accelerator_type):
        console: Console = click.get_current_context().obj
        console.warn("--num-nodes has no effect: TPU slices have a fixed number of hosts; use --num-slices")
        num_nodes = None
    return num_slices, num_nodes


def _is_tpu(accelerator_type: str | None) -> bool:
    try:
        return find_shape(accelerator_type or "").kind == "tpu"
    except UsageError:  # reported with the other problems
        return False


def _count(num_slices: int | None) -> int:
    if num_slices is None:
        raise UsageError("no number of slices given", hint="--num-slices N")
    return num_slices
