"""A workload in a file: `xpk workload create -f FILE` reads one, `--dry-run -o spec` writes one.

Its fields are the long flags of the command without their dashes, `name`, and `args` for what follows `--`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml
from click.core import ParameterSource

from xpk.model.errors import Problems, UsageError

_MOST_BYTES = 1 << 20
_NOT_OF_A_WORKLOAD = {"file", "output", "dry_run", "output_manifest_file", "wait", "timeout", "quiet", "verbose"}
_HINT = "`xpk workload create ... --dry-run -o spec` prints a file of the same fields"
Fields = Mapping[str, click.Parameter]


def file_option(command: Any) -> Any:
    """Take `-f FILE`: its fields stand where no flag is given."""

    def read(ctx: click.Context, _: click.Parameter, file: Path | None) -> None:
        if file is None:
            return
        values = _values(_load(file), _fields(ctx.command), file)
        ctx.meta.setdefault("trainer_args", tuple(values.pop("args", ())))
        ctx.default_map = {**(ctx.default_map or {}), **values}

    return click.option(
        "-f",
        "--file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=read,
        help="Read the workload from a YAML file; flags take precedence over its fields.",
    )(command)


def flag_of_name(ctx: click.Context, name: str | None, name_flag: str | None) -> str | None:
    """Return `--workload`, or the file's name unless the command line has one."""
    return None if name and ctx.get_parameter_source("name_flag") is ParameterSource.DEFAULT_MAP else name_flag


def spec_of(ctx: click.Context, name: str) -> str:
    """Return the file that asks for what the command line asks for."""
    fields: dict[str, Any] = {"name": name}
    for field, parameter in _fields(ctx.command).items():
        key = parameter.name or ""
        stated = ctx.get_parameter_source(key) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
        if field != "name" and stated and (value := ctx.params.get(key)) is not None:
            fields[field] = _plain(value)
    if trainer_args := ctx.meta.get("trainer_args"):
        fields["args"] = list(trainer_args)
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def _fields(command: click.Command) -> Fields:
    """Return the parameter of each field of a file."""
    found: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if parameter.name == "name_flag":
            found["name"] = parameter
        elif isinstance(parameter, click.Option) and not parameter.hidden and parameter.name not in _NOT_OF_A_WORKLOAD:
            long = next((flag for flag in parameter.opts if flag.startswith("--")), parameter.opts[0])
            found[long.lstrip("-")] = parameter
    return found


def _load(file: Path) -> dict[str, Any]:
    try:
        if not file.is_file():
            raise UsageError(f"{file} is not a file" if file.exists() else f"{file} does not exist", hint=_HINT)
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{file} is larger than {_MOST_BYTES >> 20} MiB", hint=_HINT)
        if b"&" in content and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content)):
            raise UsageError(f"{file} has YAML aliases, which a workload's file cannot have", hint="write them out")
        found = yaml.safe_load(content)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise UsageError(f"cannot read {file}: {why}", hint=_HINT) from error
    if not isinstance(found, dict):
        raise UsageError(f"{file} must hold fields, such as `num-slices: 2`", hint=_HINT)
    return found


def _values(content: dict[str, Any], fields: Fields, file: Path) -> dict[str, Any]:
    """Return the values by the names of click's parameters. Raises UsageError with all that is wrong."""
    wrong = Problems()
    values: dict[str, Any] = {}
    for field, value in content.items():
        if field == "args":
            values["args"] = wrong.read([], _words, value, file)
        elif not isinstance(field, str) or field not in fields:
            near = difflib.get_close_matches(str(field), [*fields, "args"], 1)
            wrong.add(f"{file}: unknown field '{field}'" + (f"; did you mean '{near[0]}'?" if near else ""), hint=_HINT)
        else:
            values[fields[field].name or ""] = wrong.read(None, _value, fields[field], field, value, file)
    wrong.check(f"{file} is not a workload", hint=_HINT)
    return {key: value for key, value in values.items() if value is not None}


def _words(value: Any, file: Path) -> list[str]:
    if not isinstance(value, list) or any(isinstance(word, dict | list) for word in value):
        raise UsageError(f"{file}: args must be a list of words, got {str(value)[:80]!r}", hint=_HINT)
    return [str(word) for word in value]


def _value(parameter: click.Parameter, field: str, value: Any, file: Path) -> Any:
    if parameter.multiple:
        words = [f"{key}={each}" for key, each in value.items()] if isinstance(value, dict) else value
        return _words(words if isinstance(words, list) else [words], file)
    if isinstance(value, dict | list):
        raise UsageError(f"{file}: {field} must be one value, got {str(value)[:80]!r}", hint=_HINT)
    if getattr(parameter, "is_flag", False) and not isinstance(value, bool):
        raise UsageError(f"{file}: {field} must be true or false, got {str(value)[:80]!r}", hint=_HINT)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _plain(value: Any) -> Any:
    """Return what YAML writes for a parameter's value."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, bool | int | float) else str(value)
