"""What `xpk cluster create` and `resize` are asked for, with all that is wrong with it at once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import click

from xpk.capacity import preferences
from xpk.capacity.provider import Checks, Provider, load_provider, maker_names, provider_names, slices_there
from xpk.cli import complete
from xpk.cli.cluster.gke_options import chosen_provider, in_seconds
from xpk.cli.cluster.run_plan import given_flags
from xpk.cli.options import Command, the_name
from xpk.cli.terminal.output import Console
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.errors import Problems, UsageError
from xpk.model.specs import ClusterSpec, cluster_problems, count_slices

Counted = tuple[int | None, int | None, int | None]  # --num-slices, --num-nodes, --num-cubes

_HINT = "see `xpk cluster create --help`"
_UNNAMED = "unnamed"  # stands for a name that lacks, while the rest is looked at


def maker_option(command: Command) -> Command:
    """Take the kind of capacity that a cluster is to be of."""
    return click.option(
        "--provider",
        metavar="local|kind|gke",
        envvar="XPK_PROVIDER",
        show_envvar=True,
        shell_complete=complete.providers,
        help="Processes of this machine (the default), nodes in Docker, or Google Cloud.",
    )(command)


def asked_to_create(
    name: tuple[str | None, str | None],
    accelerator_type: str | None,
    counts: Counted,
    provider: str | None,
    flags: dict[str, Any],
    *,
    dry_run: bool = False,
) -> tuple[Provider, ClusterSpec]:
    """Return who is to make which cluster. Raises UsageError with all that is wrong, whoever reads it.

    `name`: as NAME and as --cluster. `dry_run`: what only a real run has to know may lack.
    """
    problems = Problems()
    flags = problems.read({**flags, "timeout": None}, in_seconds, flags)
    chosen = problems.read(_UNNAMED, the_name, "cluster", *name)
    shape: SliceShape | None = problems.read(None, _shape, accelerator_type)
    count = problems.read(1 if counts[0] is None else counts[0], _count_slices, counts, shape)
    given = given_flags(flags)
    kind = chosen_provider(provider, given, preferences.load().get("provider", "local"))
    source: Provider | None = problems.read(None, _maker, kind, given)
    spec = ClusterSpec(name=chosen, shape=shape, num_slices=count) if shape else None
    if isinstance(source, Checks):
        problems.read(None, partial(source.check_create, lenient=dry_run), spec)
    if not spec or not source:  # nobody has looked at these
        problems.read(None, _check_named, chosen, count or int("--enable-autoprovisioning" in given))
    problems.check(f"cluster '{chosen}' cannot be created", hint=_HINT)
    assert spec and source
    if counts == (None, None, None):  # whoever does not say how many means those there are
        spec = replace(spec, num_slices=slices_there(source, spec.name, spec.shape) or spec.num_slices)
    return source, spec


def asked_to_resize(
    name: tuple[str | None, str | None], num_slices: int | None, flags: dict[str, Any]
) -> tuple[str, int, dict[str, Any]]:
    """Return which cluster is to get how many slices, and its flags. Raises UsageError with all that is wrong."""
    problems = Problems()
    flags = problems.read(flags, in_seconds, flags)
    chosen = problems.read(_UNNAMED, the_name, "cluster", *name)
    count = problems.read(1, _count, num_slices)
    problems.check(f"cluster '{chosen}' cannot be resized", hint="see `xpk cluster resize --help`")
    return chosen, count, flags


def _count_slices(counts: Counted, shape: SliceShape | None) -> int:
    num_slices, num_nodes, num_cubes = counts
    if num_cubes is not None:
        if num_slices not in (None, num_cubes):
            raise UsageError("--num-cubes and --num-slices say different things", hint="give one of them")
        num_slices = num_cubes
    if num_nodes is not None and shape and shape.kind == "tpu":
        console: Console = click.get_current_context().obj
        console.warn("--num-nodes has no effect: TPU slices have a fixed number of hosts; --num-slices counts them")
        num_nodes = None
    return count_slices(num_slices, num_nodes, shape.kind if shape else "")


def _shape(accelerator_type: str | None) -> SliceShape:
    if not accelerator_type:
        raise UsageError("which accelerator type?", hint="--tpu-type v5litepod-8; `xpk accelerator list` shows all")
    return find_shape(accelerator_type)


def _count(num_slices: int | None) -> int:
    if num_slices is None:
        raise UsageError("how many slices?", hint="--num-slices N")
    return num_slices


def _maker(kind: str, given: dict[str, str]) -> Provider:
    if kind not in provider_names():
        raise UsageError(f"unknown provider '{kind}'", hint=f"choose from {', '.join(maker_names())}")
    return load_provider(kind, given)


def _check_named(name: str, num_slices: int) -> None:
    if found := cluster_problems(name, num_slices):
        raise UsageError(f"cluster '{name}' cannot be created", problems=found, hint=_HINT)
