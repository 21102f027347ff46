"""Requests of `xpk cluster create` and `resize`, parsed and checked; all problems are reported together."""

from __future__ import annotations

from typing import Any

import click

from xpk.capacity import user_config
from xpk.capacity.clusters import given_flags, plan_create
from xpk.capacity.plan.plan import Plan
from xpk.cli import complete
from xpk.cli.cluster.gke_options import chosen_provider, in_seconds
from xpk.cli.options import Command, the_name
from xpk.cli.terminal.output import Console
from xpk.model.accelerators import find_shape
from xpk.model.errors import Problems, UsageError
from xpk.model.specs import ClusterSpec

Counted = tuple[int | None, int | None, int | None]  # --num-slices, --num-nodes, --num-cubes

_UNNAMED = "unnamed"  # placeholder for a missing name while the rest is checked


def maker_option(command: Command) -> Command:
    """Add the provider of a new cluster."""
    return click.option(
        "--provider",
        metavar="local|kind|gke",
        envvar="XPK_PROVIDER",
        show_envvar=True,
        shell_complete=complete.providers,
        help="Where slices run: this machine (local), Docker (kind) or Google Cloud (gke). [default: local]",
    )(command)


def asked_to_create(
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
    flags = problems.read({**flags, "timeout": None}, in_seconds, flags)
    chosen = problems.read(_UNNAMED, the_name, "cluster", *name)
    num_slices, num_nodes = problems.read(counts[:2], _without_cubes, counts, accelerator_type)
    given = given_flags(flags)
    return plan_create(
        chosen,
        accelerator_type,
        num_slices,
        num_nodes=num_nodes,
        provider=chosen_provider(provider, given, user_config.load().get("provider", "local")),
        flags=given,
        problems=problems,
        is_dry=dry_run,
    )


def asked_to_resize(
    name: tuple[str | None, str | None], num_slices: int | None, flags: dict[str, Any]
) -> tuple[str, int, dict[str, Any]]:
    """Return the cluster, its new number of slices, and its flags. Raises UsageError with all problems."""
    problems = Problems()
    flags = problems.read(flags, in_seconds, flags)
    chosen = problems.read(_UNNAMED, the_name, "cluster", *name)
    count = problems.read(1, _count, num_slices)
    problems.check(f"cluster '{chosen}' cannot be resized", hint="see `xpk cluster resize --help`")
    return chosen, count, flags


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
