"""Options of the command line as metadata of dataclass fields, each written once, and checks of the fields' values."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from xpk.model.redaction import GONE, SECRET_NAME, redact

Limits = tuple[int, int | None]

Check = Callable[[Any, str], list[str]]  # of a value; returns problems that name the flag, one line each

_OPTION, _CHECK = "option", "check"
_NOUNS = {str: "a string", Path: "a path", int: "an integer", float: "a number", bool: "True or False"}
_LENGTH = 80  # of a value in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The command-line option of a field.

    `flags`: messages name the first one; by default, it has the field's name.
    `parameter`: click's name, and part of a variable's; by default that of the first flag.
    `variables`: of the environment, in their order, after one of `prefix` and the flag unless the prefix is "".
    `hidden`: further variables, which help does not name.
    `commands`: those that have the option, if several are made from one class.
    `parse`: of the text, or the texts of an option that may be repeated; called with the name that messages use.
    `limits`: of a number, both included. `is_time`: written as 90s, 5m, 2h or 1d.
    """

    help: str
    flags: tuple[str, ...] = ()
    parameter: str = ""
    metavar: str | None = None
    prefix: str = ""
    variables: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    commands: tuple[str, ...] = ("create",)
    choices: tuple[str, ...] = ()
    limits: Limits | None = None
    is_time: bool = False
    parse: Callable[[Any, str], Any] | None = None

    @property
    def flag(self) -> str:
        """Return the flag that messages name."""
        return self.flags[0].partition("/")[0]

    def of_field(self, name: str) -> Option:
        """Return the option with the flag, parameter and variables that it has on a field of this name."""
        option = replace(self, flags=self.flags or (f"--{name.replace('_', '-')}",))
        parameter = self.parameter or option.flag.lstrip("-").replace("-", "_")
        variable = (f"{self.prefix}{parameter.upper()}",) if self.prefix else ()
        return replace(option, parameter=parameter, variables=(*variable, *self.variables))


def option(default: Any, *flags: str, default_factory: Any = MISSING, check: Check | None = None, **more: Any) -> Any:
    """Return a field with an option, and with a check of its value."""
    metadata = {_OPTION: Option(flags=flags, **more), _CHECK: check}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def checked(default: Any, check: Check) -> Any:
    """Return a field with a check of its value, and without an option."""
    return field(default=default, metadata={_CHECK: check})


def option_of(field: Field[Any]) -> Option | None:
    """Return the option of a field, None if it has none."""
    option: Option | None = field.metadata.get(_OPTION)
    return option and option.of_field(field.name)


def options_of(kind: type[Any]) -> Iterator[tuple[Field[Any], Option]]:
    """Yield the fields of a class that have an option, in their order."""
    for member in fields(kind):
        if option := option_of(member):
            yield member, option


def default_of(field: Field[Any]) -> Any:
    """Return the default of a field that has one."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def type_problems(values: Any, field: Field[Any]) -> list[str]:
    """Return a problem, in one line, for a field of a dataclass or for each of its items that has a wrong type."""
    return list(_type_problems(field.name, getattr(values, field.name), _types(values.__class__)[field.name]))


def rule_problems(name: str, value: Any, option: Option) -> list[str]:
    """Return the choice or limit of an option that a value of the right type violates, as one line; or nothing."""
    rule = _violated(value, option)
    return [_problem(name, value, rule)] if rule else []


def field_problems(values: Any) -> list[str]:
    """Return what the checks of a dataclass's fields find in its values, one line each."""
    problems: list[str] = []
    for member in fields(values):
        if check := member.metadata.get(_CHECK):
            option = option_of(member)
            problems += check(getattr(values, member.name), option.flag if option else member.name)
    return problems


def range_text(limits: Limits) -> str:
    """Return limits in words."""
    low, high = limits
    return f"at least {low}" if high is None else f"between {low} and {high}"


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _type_problems(name: str, value: Any, kind: Any) -> Iterator[str]:
    """Yield a problem for a value, or for each of its items, of another type than `kind`."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Sequence and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, item in enumerate(value):
            yield from _type_problems(f"{name}[{index}]", item, parts[0])
    elif origin is Mapping and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _type_problems(f"a key of {name}", key, parts[0])
            yield from _type_problems(f"{name}[{key!r}]", item, parts[1])
    elif not _is_a(value, kind):
        yield _problem(name, value, f"must be {_noun(kind)}")


def _is_a(value: Any, kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_is_a(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str)  # its values are the choices of the option
    if origin is tuple and Ellipsis in parts:
        return isinstance(value, tuple) and all(_is_a(item, parts[0]) for item in value)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_is_a, value, parts))
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return origin is None and isinstance(value, kind)


def _noun(kind: Any) -> str:
    """Return a type in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_noun(part) for part in parts if part is not types.NoneType)
    if origin is Sequence:
        return f"a list of {_plural(parts[0])}"
    if origin is Mapping:
        return f"a mapping of {_plural(parts[0])} to {_plural(parts[1])}"
    if origin is tuple:
        return f"a tuple of {'' if Ellipsis in parts else f'{len(parts)} '}{_plural(parts[0])}"
    return _NOUNS.get(kind, "a string")


def _plural(kind: Any) -> str:
    return "tuples" if get_origin(kind) is tuple else f"{_noun(kind).split()[-1]}s"


def _violated(value: Any, option: Option) -> str:
    """Return the rule of an option that a value of the right type violates, "" if there is none."""
    if value is None:
        return ""
    if option.choices and value not in option.choices:
        return f"must be {' or '.join(option.choices)}"
    if option.limits:
        low, high = option.limits
        if not low <= value <= (sys.float_info.max if high is None else high):
            return f"must be {range_text(option.limits)}"
    return ""


def _problem(name: str, value: Any, rule: str) -> str:
    """Return a problem with its value, redacted if it looks like a secret or its key is the name of one."""
    text = GONE if SECRET_NAME.search(name.partition("[")[2]) else redact(repr(value))
    return f"{name} {rule}, got {text if len(text) <= _LENGTH else f'{text[:_LENGTH]}...'}"
