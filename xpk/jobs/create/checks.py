"""Checks of a workload's fields: types, choices and limits, as their annotations and options define them."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from xpk.jobs.create import create
from xpk.jobs.create.workload import Option, Workload, options_of
from xpk.model.errors import Problems
from xpk.model.redaction import GONE, SECRET_NAME, redact

_NOUNS = {str: "a string", Path: "a path", int: "an integer", float: "a number", bool: "True or False"}
# Values in place of invalid ones, for fields whose default is missing or has another meaning.
_STAND_INS = {"name": "unnamed", "command": "true"}
_LENGTH = 80  # of a value in a message


def valid_fields(request: Workload, problems: Problems) -> Workload:
    """Return a request with valid types, choices and limits; record a problem for each field that violates them.

    Defaults replace the invalid values, so that all other fields can be checked.
    """
    changes: dict[str, Any] = {}
    for field, option in options_of(Workload):
        value = getattr(request, field.name)
        wrong = list(_type_problems(field.name, value, _types()[field.name]))
        if not wrong and option and (rule := _violated(value, option)):
            wrong = [_problem(field.name, value, rule)]
        for problem in wrong:
            problems.add(problem, hint=create.HELP)
        if wrong:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            changes[field.name] = _STAND_INS.get(field.name, default)
    return replace(request, **changes) if changes else request


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Workload)


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
        return f"a tuple of {len(parts)} {_plural(parts[0])}"
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
            return f"must be at least {low}" if high is None else f"must be from {low} to {high}"
    return ""


def _problem(name: str, value: Any, rule: str) -> str:
    """Return a problem with its value, redacted if it looks like a secret or its key is the name of one."""
    text = GONE if SECRET_NAME.search(name.partition("[")[2]) else redact(repr(value))
    return f"{name} {rule}, got {text if len(text) <= _LENGTH else f'{text[:_LENGTH]}...'}"
