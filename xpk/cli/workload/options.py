"""The options of `workload create`: one for each field of `Workload`, and several for a few of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click

from xpk.cli import complete
from xpk.cli.options import Command, accelerator_option
from xpk.jobs.create.create import HELP
from xpk.jobs.create.workload import Workload
from xpk.model.errors import Problems
from xpk.model.options import Option, option_of, options_of

Decorator = Callable[[Command], Command]

# The options of fields that have several, or share one with other commands.
_OF_FIELD: dict[str, tuple[Decorator[Any], ...]] = {
    "accelerator_type": (accelerator_option("Accelerator type. [default: the cluster's]"),),
    "capacity": (
        click.option("--on-demand", is_flag=True, help="gke: use on-demand slices, also in new node pools."),
        click.option("--spot", is_flag=True, help="gke: use spot slices."),
        click.option(
            "--reservation", metavar="R", help="gke: use slices of a reservation, by its name or projects/P/..."
        ),
        click.option("--flex", is_flag=True, help="gke: use flex-start slices."),
    ),
    "env": (
        click.option("--env", multiple=True, metavar="NAME=VALUE", help="Environment variable; may be repeated."),
        click.option(
            "--env-file",
            "env_files",
            multiple=True,
            type=click.Path(path_type=Path),
            help="File of NAME=VALUE lines; may be repeated.",
        ),
    ),
    "fatal_exit_codes": (
        click.option(
            "--fatal-exit-codes",
            metavar="CODES",
            help="Exit codes that fail the workload without a restart, in addition to 42, 126 and 127.",
        ),
    ),
}
_INVALID = "xpk.invalid-options"


class _FieldOption(click.Option):
    """An option of a field. An invalid value is kept for `invalid_options`, and the default replaces it."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert a value."""
        try:
            return super().type_cast_value(ctx, value)
        except click.BadParameter as error:
            if ctx.resilient_parsing:
                raise
            ctx.meta.setdefault(_INVALID, []).append(error)
            return _DEFAULTS[self.name or ""]


def invalid_options(ctx: click.Context, problems: Problems) -> None:
    """Record a problem for each option of a field whose value click could not convert."""
    for error in ctx.meta.get(_INVALID, ()):
        problems.add(error.format_message().rstrip("."), hint=HELP)


_DEFAULTS = {option.parameter: field.default for field, option in options_of(Workload)}
_COMPLETIONS = {"priority": complete.priorities, "queue": complete.queues}


def workload_options(command: Command) -> Command:
    """Add the options that describe a workload."""
    for field in reversed(fields(Workload)):
        for decorate in reversed(_OF_FIELD.get(field.name, ())):
            command = decorate(command)
        if option := option_of(field):
            command = _click_option(field, option)(command)
    return command


def _click_option(field: Field[Any], option: Option) -> Decorator[Any]:
    more: dict[str, Any] = {"metavar": option.metavar, "help": option.help}
    kind, default = str(field.type), field.default
    if kind == "bool":
        has_opposite = "/" in option.flags[0]
        more |= {"is_flag": True, "default": default, "show_default": has_opposite}
    elif option.parse or kind.startswith("Sequence"):
        more["multiple"] = True
    elif option.is_time:
        pass
    else:
        more["type"] = _type(kind, option)
        if default is not None:
            more |= {"default": default, "show_default": True}
    if option.variables:
        more |= {"envvar": option.variables, "show_envvar": True}
    more |= {"cls": _FieldOption}
    return click.option(*option.flags, option.parameter, shell_complete=_COMPLETIONS.get(field.name), **more)


def _type(kind: str, option: Option) -> Any:
    """Return click's type for a field of a type."""
    if option.choices:
        return click.Choice(option.choices)
    if option.limits:
        return click.IntRange(*option.limits)
    if "Path" in kind:
        return click.Path(path_type=Path)
    return {"int": int, "float": float}.get(kind.partition(" ")[0], str)
