"""Requests of `xpk cluster create` and `resize`, parsed and checked; all problems are reported together."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import click

from xpk.capacity import user_config
from xpk.capacity.gke.options import GkeOptions
from xpk.capacity.provider import Checks, Provider, load_provider, maker_names, provider_names, slices_there
from xpk.cli import complete
from xpk.cli.cluster.provider_options import chosen_provider, completed, given_flags, read_options
from xpk.cli.options import Command, the_name
from xpk.cli.terminal.output import Console
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.errors import Problems, UsageError
from xpk.model.specs import ClusterSpec, cluster_problems, count_slices

Counted = tuple[int | None, int | None, int | None]  # --num-slices, --num-nodes, --num-cubes

_HINT = "see `xpk cluster create --help`"
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
) -> tuple[Provider, ClusterSpec]:
    """Return the provider and the spec of a new cluster. Raises UsageError with all problems.

    `name`: the values of NAME and --cluster. `dry_run`: values that only a real run needs may be missing.
    """
    problems = Problems()
    chosen = problems.read(_UNNAMED, the_name, "cluster", *name)
    shape: SliceShape | None = problems.read(None, _shape, accelerator_type)
    count = problems.read(1 if counts[0] is None else counts[0], _count_slices, counts, shape)
    given = given_flags(flags)
    kind = chosen_provider(provider, given, user_config.load().get("provider", "local"))
    source: Provider | None = problems.read(None, _maker, kind, flags, problems)
    spec = ClusterSpec(name=chosen, shape=shape, num_slices=count) if shape else None
    if isinstance(source, Checks):
        problems.read(None, partial(source.check_create, lenient=dry_run), spec)
    if not spec or not source:  # not checked by the provider
        problems.read(None, _check_named, chosen, count or int("--enable-autoprovisioning" in given))
    problems.check(f"cluster '{chosen}' cannot be created", hint=_HINT)
    assert spec and source
    if counts == (None, None, None):  # keep the existing number of slices
        spec = replace(spec, num_slices=slices_there(source, spec.name, spec.shape) or spec.num_slices)
    return source, spec


def asked_to_resize(
    name: tuple[str | None, str | None], num_slices: int | None, flags: dict[str, Any]
) -> tuple[str, int]:
    """Return the cluster and its new number of slices. Raises UsageError with all problems, also of the options."""
    problems = Problems()
    read_options("gke", flags, problems)  # the only provider that has options of `resize`
    chosen = problems.read(_UNNAMED, the_name, "cluster", *name)
    count = problems.read(1, _count, num_slices)
    problems.check(f"cluster '{chosen}' cannot be resized", hint="see `xpk cluster resize --help`")
    return chosen, count


def _count_slices(counts: Counted, shape: SliceShape | None) -> int:
    num_slices, num_nodes, num_cubes = counts
    if num_cubes is not None:
        if num_slices not in (None, num_cubes):
            raise UsageError("--num-cubes and --num-slices differ", hint="pass one of them")
        num_slices = num_cubes
    if num_nodes is not None and shape and shape.kind == "tpu":
        console: Console = click.get_current_context().obj
        console.warn("--num-nodes has no effect: TPU slices have a fixed number of hosts; use --num-slices")
        num_nodes = None
    return count_slices(num_slices, num_nodes, shape.kind if shape else "")


def _shape(accelerator_type: str | None) -> SliceShape:
    if not accelerator_type:
        raise UsageError(
            "no accelerator type given", hint="--tpu-type v5litepod-8; `xpk accelerator list` shows all types"
        )
    return find_shape(accelerator_type)


def _count(num_slices: int | None) -> int:
    if num_slices is None:
        raise UsageError("no number of slices given", hint="--num-slices N")
    return num_slices


def _maker(kind: str, flags: dict[str, Any], problems: Problems) -> Provider:
    if kind not in provider_names():
        raise UsageError(f"unknown provider '{kind}'", hint=f"choose from {', '.join(maker_names())}")
    options = read_options(kind, flags, problems)
    return load_provider(kind, completed(options) if isinstance(options, GkeOptions) else options)


def _check_named(name: str, num_slices: int) -> None:
    if found := cluster_problems(name, num_slices):
        raise UsageError(f"cluster '{name}' cannot be created", problems=found, hint=_HINT)
