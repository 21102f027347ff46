"""Workload files: `xpk workload create -f FILE` reads one, `--dry-run -o spec` writes one.

Fields are the long flags of the command without their dashes, `name`, and `args` for the arguments after `--`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml
from click.core import ParameterSource

from xpk.cli.google_xpk import WorkloadCommand
from xpk.cli.target import stated_place
from xpk.model.closest import with_closest
from xpk.model.errors import Problems, UsageError

_MAX_BYTES = 1 << 20
_NOT_OF_A_WORKLOAD = {"file", "output", "dry_run", "output_manifest_file", "wait", "timeout", "quiet", "verbose"}
# Fields of a file that only `workload create` uses.
OF_CREATE_ALONE = ("clusters", "fresh", "max-cost", "move-after", "resume", "when")
_STATED = "xpk.file"
_HINT = "`xpk workload create ... --dry-run -o spec` prints a file of the same fields"
Fields = Mapping[str, click.Parameter]


class _Loader(yaml.SafeLoader):
    """A loader that keeps 010, 1_000 and 1:30 as they are written."""


_INT = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in known if resolver[0] != _INT]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT, re.compile(r"-?(?:0|[1-9][0-9]*)$"), list("-0123456789"))


class SpecCommand(WorkloadCommand):
    """A command with `-f FILE`, whose fields take precedence over variables."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace values from environment variables by those of the file."""
        rest, stated = super().parse_args(ctx, args), ctx.meta.get(_STATED, {})
        for parameter in self.params:
            key = parameter.name or ""
            if key in stated and ctx.get_parameter_source(key) is ParameterSource.ENVIRONMENT:
                ctx.params.pop(key, None)
                parameter.handle_parse_result(ctx, {key: stated[key]}, [])
                ctx.set_parameter_source(key, ParameterSource.DEFAULT_MAP)
        return rest


def file_option(command: Any) -> Any:
    """Add `-f FILE`; flags take precedence over its fields."""

    def read(ctx: click.Context, _: click.Parameter, file: Path | None) -> None:
        if file is None:
            return
        values = _values(_load(file), _fields(ctx.command), file)
        ctx.meta.setdefault("trainer_args", tuple(values.pop("args", ())))
        ctx.default_map = {**(ctx.default_map or {}), **values}
        ctx.meta[_STATED] = values

    return click.option(
        "-f",
        "--file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=read,
        help="Read the workload from a YAML file, - for standard input; flags take precedence over its fields.",
    )(command)


def flag_of_name(ctx: click.Context, name: str | None, name_flag: str | None) -> str | None:
    """Return `--workload`, or the file's name unless the command line has one."""
    return None if name and ctx.get_parameter_source("name_flag") is ParameterSource.DEFAULT_MAP else name_flag


def spec_of(ctx: click.Context, name: str) -> str:
    """Return the content of a file that is equivalent to the command line."""
    fields: dict[str, Any] = {"name": name}
    values = ctx.params | stated_place(ctx)
    for field, parameter in _fields(ctx.command).items():
        key = parameter.name or ""
        stated = ctx.get_parameter_source(key) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
        if field != "name" and stated and (value := values.get(key)) is not None:
            fields[field] = _plain(value)
    if trainer_args := ctx.meta.get("trainer_args"):
        fields["args"] = list(trainer_args)
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def _fields(command: click.Command) -> Fields:
    """Return the parameter of each field of a file."""
    fields: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if parameter.name == "name_flag":
            fields["name"] = parameter
        elif isinstance(parameter, click.Option) and not parameter.hidden and parameter.name not in _NOT_OF_A_WORKLOAD:
            long_flag = next((flag for flag in parameter.opts if flag.startswith("--")), parameter.opts[0])
            fields[long_flag.lstrip("-")] = parameter
    return fields


def _load(file: Path) -> dict[str, Any]:
    try:
        is_stdin = str(file) == "-"
        if not is_stdin and not file.is_file():
            raise UsageError(f"{file} is not a file" if file.exists() else f"{file} does not exist", hint=_HINT)
        with click.open_file(str(file), "rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise UsageError(f"{file} is larger than {_MAX_BYTES >> 20} MiB", hint=_HINT)
        if b"&" in content and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content)):
            raise UsageError(f"{file} has YAML aliases, which are not supported", hint="write the values out")
        fields = yaml.load(content, _Loader)  # noqa: S506  # a safe loader
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise UsageError(f"cannot read {file}: {why}", hint=_HINT) from error
    if not isinstance(fields, dict):
        raise UsageError(f"{file} must hold fields, such as `num-slices: 2`", hint=_HINT)
    return fields


def _values(content: dict[str, Any], fields: Fields, file: Path) -> dict[str, Any]:
    """Return the values by the names of click's parameters. Raises UsageError with all problems."""
    wrong = Problems()
    values: dict[str, Any] = {}
    for field, value in content.items():
        if field == "args":
            values["args"] = wrong.read([], _words, value, file)
        elif field in OF_CREATE_ALONE and field not in fields:
            continue
        elif not isinstance(field, str) or field not in fields:
            problem = f"{file}: unknown field '{field}'"
            wrong.add(with_closest(problem, str(field), [*fields, "args"], mark=";"), hint=_HINT)
        else:
            values[fields[field].name or ""] = wrong.read(None, _value, fields[field], field, value, file)
    wrong.check(f"{file} is not a workload", hint=_HINT)
    return {key: value for key, value in values.items() if value is not None}


def _words(value: Any, file: Path) -> list[str]:
    if not isinstance(value, list) or any(isinstance(word, dict | list) for word in value):
        raise UsageError(f"{file}: args must be a list of words, got {str(value)[:80]!r}", hint=_HINT)
    return _strings({f"args[{index}]": word for index, word in enumerate(value)}, file)


def _value(parameter: click.Parameter, field: str, value: Any, file: Path) -> Any:
    if parameter.multiple:
        if isinstance(value, dict):
            texts = _strings({f"{field}.{key}": item for key, item in value.items()}, file)
            return [f"{key}={text}" for key, text in zip(value, texts, strict=True)]
        values = value if isinstance(value, list) else [value]
        return _strings({f"{field}[{index}]": item for index, item in enumerate(values)}, file)
    if isinstance(value, dict | list):
        raise UsageError(f"{file}: {field} must be one value, got {str(value)[:80]!r}", hint=_HINT)
    if value is None:
        return None
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise UsageError(f"{file}: {field} must be true or false, got {str(value)[:80]!r}", hint=_HINT)
        return value
    if isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType):
        is_int = isinstance(parameter.type, click.types.IntParamType)
        if isinstance(value, bool) or (is_int and isinstance(value, float)):
            expected = "an integer" if is_int else "a number"
            raise UsageError(f"{file}: {field} must be {expected}, got {_yaml_word(value)}", hint=_HINT)
        return value
    return _strings({field: value}, file)[0]


def _strings(values: Mapping[str, Any], file: Path) -> list[str]:
    """Return strings and integers as strings. Raises UsageError for others, whose spelling YAML does not preserve."""
    wrong = [field for field, value in values.items() if type(value) not in (str, int)]
    if wrong:
        problems = [f"{file}: {field} must be a string, got {_yaml_word(values[field])}" for field in wrong]
        raise UsageError(problems[0], problems=problems, hint='quote it: "..."')
    return [str(value) for value in values.values()]


def _yaml_word(value: Any) -> str:
    """Return a value in YAML's notation."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)[:80]


def _plain(value: Any) -> Any:
    """Return a parameter's value as plain data for YAML."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float) else str(value)
