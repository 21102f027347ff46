"""Command lines of `xpk`, parsed without being run."""

from __future__ import annotations

from typing import cast

import click

from xpk.cli.main import xpk
from xpk.cli.terminal.output import Console

ELLIPSIS = "..."  # stands for options that an example omits
VALUE = "VALUE"  # stands for the values of an f-string, and for an omitted value


def parse(arguments: list[str]) -> None:
    """Parse a command line. Raises click.UsageError for an unknown command or flag, or a value that is not allowed."""
    command: click.Command = xpk
    context = click.Context(command, info_name="xpk", obj=Console(), **command.context_settings)
    while True:
        if isinstance(command, click.Group):
            _, arguments, _ = command.make_parser(context).parse_args(args=list(arguments))
            if not arguments:
                return
            _, child, arguments = command.resolve_command(context, arguments)
            assert child is not None
            command, context = child, click.Context(child, info_name=child.name, parent=context, obj=Console())
            continue
        values, left, _ = command.make_parser(context).parse_args(args=_own(command, arguments))
        _check_values(command, context, values)
        if unexpected := [word for word in left if word not in (ELLIPSIS, VALUE)]:
            raise click.UsageError(f"unexpected argument {unexpected[0]}", context)
        return


def _own(command: click.Command, arguments: list[str]) -> list[str]:
    """Return the arguments before `--`, after which those of the trainer or of a program follow."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if any(parameter.name == "dry_run" and isinstance(parameter.type, click.Choice) for parameter in command.params):
        return ["--dry-run=client" if word == "--dry-run" else word for word in own]  # its value is optional
    return own


def _check_values(command: click.Command, context: click.Context, values: dict[str, object]) -> None:
    """Check values of choices and numbers; placeholders in capitals and missing files are allowed."""
    for parameter in command.params:
        content = values.get(parameter.name or "")
        for value in content if isinstance(content, list | tuple) else [content]:
            if isinstance(value, str) and value != VALUE and isinstance(parameter.type, click.Choice | click.IntRange):
                cast("click.ParamType[object]", parameter.type).convert(value, parameter, context)
