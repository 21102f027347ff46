"""Options of providers on the command line, created from the fields of their classes and read back into an object."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import Field, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from xpk.capacity.gke.request.options import GkeOptions
from xpk.capacity.kind.options import KindOptions
from xpk.capacity.options import ProviderOptions
from xpk.capacity.provider import cluster_names, provider_type
from xpk.cli import complete
from xpk.cli.options import Command
from xpk.cli.target import default_place
from xpk.model.durations import parse_duration
from xpk.model.errors import Problems, UsageError
from xpk.model.options import Option, options_of

_Options = TypeVar("_Options", bound=ProviderOptions)
_COMPLETIONS = {"tpu_type": complete.accelerator_types}


class _Option(click.Option):
    """An option that also reads `hidden` variables, which its help does not name."""

    def __init__(self, *args: Any, hidden_variables: tuple[str, ...] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self._hidden_variables = hidden_variables

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value of the first variable that is set."""
        values = (value for name in self._hidden_variables if (value := os.environ.get(name)))
        return super().resolve_envvar_value(ctx) or next(values, None)


def provider_options(command: str, *kinds: type[Any]) -> Callable[[Command], Command]:
    """Add the options of these providers to a command; the first provider with a flag determines its help."""
    option_of_flag: dict[str, tuple[Field[Any], Option]] = {}
    for kind in kinds:
        for field, option in options_of(kind):
            if command in option.commands:
                before = option_of_flag.get(option.flag, (field, option))[1]
                variables = tuple(dict.fromkeys((*before.variables, *option.variables)))
                option_of_flag[option.flag] = field, replace(before, variables=variables)

    def decorate(decorated: Command) -> Command:
        for field, option in reversed(option_of_flag.values()):
            decorated = _click_option(field, option)(decorated)
        return decorated

    return decorate


def given_flags(flags: dict[str, Any]) -> list[str]:
    """Return the flags among `flags` that were given on the command line, or by a variable of this one command."""
    ctx, names = click.get_current_context(), list[str]()
    for param in ctx.command.params:
        name = param.name or ""
        if not isinstance(param, click.Option) or flags.get(name) in (None, False, ()):
            continue
        if _source(ctx, name) == "flag" or _variable(param) is None:
            names.append(param.opts[0])
    return names


def chosen_provider(provider: str | None, flags: list[str], otherwise: str = "local") -> str:
    """Return the given provider; gke if a flag of Google Cloud is given; else `otherwise`."""
    of_gke, shared = ({option.flag for _, option in options_of(kind)} for kind in (GkeOptions, KindOptions))
    return provider or ("gke" if (of_gke - shared - {"--tpu-type"}) & set(flags) else otherwise)


def valid_options(kind: str, flags: dict[str, Any]) -> Any:
    """Return the options of a provider. Raises UsageError with all problems."""
    problems = Problems()
    options = read_options(kind, flags, problems)
    problems.check(f"invalid options of provider '{kind}'", hint=f"see `{click.get_current_context().command_path} -h`")
    return options


def read_options(kind: str, flags: dict[str, Any], problems: Problems) -> Any:
    """Return the options of a provider; `problems` takes those that it does not support, and invalid values."""
    options_type = provider_type(kind).options_type
    problems.read(None, _check_supported, kind, given_flags(flags), options_type)
    values = {
        field.name: problems.read(field.default, _parse, field, option, flags[option.parameter])
        for field, option in options_of(options_type)
        if option.parameter in flags
    }
    return options_type(**values)


def located(options: _Options, flags: dict[str, Any], cluster: str) -> _Options:
    """Return options with the project and zone of a cluster; defaults apply only to unknown clusters."""
    if not isinstance(options, GkeOptions):
        return options
    if cluster not in cluster_names("gke"):
        return completed(options)
    ctx = click.get_current_context()
    project, zone = (flags.get(name) if _source(ctx, name) == "flag" else None for name in ("project", "zone"))
    return replace(options, project=project or "", zone=zone or "")


def completed(options: _Options) -> _Options:
    """Return options with the default project and zone for those that are missing."""
    if not isinstance(options, GkeOptions):
        return options
    place = default_place()
    project, zone = options.project or place.get("project", ""), options.zone or place.get("zone", "")
    return replace(options, project=project, zone=zone)


def _click_option(field: Field[Any], option: Option) -> Callable[[Command], Command]:
    more: dict[str, Any] = {"help": option.help, "cls": _Option, "hidden_variables": option.hidden}
    if option.variables:
        more |= {"envvar": list(option.variables), "show_envvar": True}
    if field.type == "bool":
        more["is_flag"] = True
    elif option.parse is None and not option.is_time:
        more |= {"multiple": True, "type": click.Path(path_type=Path), "metavar": option.metavar}
    else:
        more["metavar"] = option.metavar
    return click.option(*option.flags, option.parameter, shell_complete=_COMPLETIONS.get(field.name), **more)


def _check_supported(kind: str, flags: list[str], options_type: type[Any]) -> None:
    supported = {option.flag for _, option in options_of(options_type)}
    if problems := [f"{flag} is not supported by the {kind} provider" for flag in flags if flag not in supported]:
        raise UsageError(problems[0], problems=problems, hint="omit it, or choose another --provider")


def _parse(field: Field[Any], option: Option, value: Any) -> Any:
    """Return the value of a field from that of its option. Raises UsageError."""
    ctx = click.get_current_context()
    name = option.flag
    if _source(ctx, option.parameter) == "variable":
        variable = next(
            (candidate for candidate in (*option.variables, *option.hidden) if os.environ.get(candidate)), None
        )
        if variable is None:  # it belongs to the option of another provider
            return field.default
        name = variable
    if value in (None, False, ()):
        return field.default
    if option.is_time:
        return parse_duration(value, name)
    return option.parse(value, name) if option.parse else value


def _source(ctx: click.Context, name: str) -> str:
    """Return the source of a parameter: flag, variable (one that options name) or another one."""
    source = ctx.get_parameter_source(name)
    if source is click.core.ParameterSource.COMMANDLINE:
        return "flag"
    option = next((param for param in ctx.command.params if param.name == name), None)
    is_named = isinstance(option, click.Option) and _variable(option) is not None
    return "variable" if source is click.core.ParameterSource.ENVIRONMENT and is_named else "other"


def _variable(option: click.Option) -> str | None:
    """Return the variable that gives an option its value, None for the one that click makes from the command's name."""
    names = option.envvar if isinstance(option.envvar, (list, tuple)) else [option.envvar or ""]
    hidden = getattr(option, "_hidden_variables", ())
    return next((name for name in (*names, *hidden) if os.environ.get(name)), None)
