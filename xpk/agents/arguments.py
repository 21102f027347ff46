"""Arguments of tools: models made from signatures and dataclasses of the Python API, and what is wrong with values."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from xpk.model.closest import with_closest
from xpk.model.errors import UsageError
from xpk.model.options import option_of

_STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
# Parameters that make no sense in a tool: callbacks, files of this machine, and what the server decides itself.
_HIDDEN = {"self", "on_progress", "dry_run", "follow", "path", "options", "wait", "timeout", "output_root", "prices"}
NAMES_HIDDEN = re.compile(rf"`({'|'.join(sorted(_HIDDEN))})`|xpk\.GkeOptions")

Fields = dict[str, Any]  # type and default of each argument


def model(name: str, fields: Fields) -> type[BaseModel]:
    """Return the model of a tool's arguments. It refuses unknown ones."""
    made: type[BaseModel] = create_model(name, __config__=_STRICT, **fields)
    return made


def of_function(function: Callable[..., Any]) -> Fields:
    """Return the arguments of a function or method, without those that agents do not set."""
    # Without the result, whose type may only be imported by type checkers.
    annotated = SimpleNamespace(__annotations__={**function.__annotations__, "return": None})
    hints, fields = get_type_hints(annotated, function.__globals__), {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in _HIDDEN:
            default = ... if parameter.default is parameter.empty else parameter.default
            is_several = parameter.kind is parameter.VAR_POSITIONAL
            fields[name] = (list[hints[name]], []) if is_several else (hints[name], default)  # type: ignore[valid-type]
    return fields


def of_dataclass(kind: type[Any], without: frozenset[str] = frozenset()) -> Fields:
    """Return the fields of a dataclass of the Python API, described by the help of their options."""
    hints, fields = get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        if field.name in without:
            continue
        option = option_of(field)
        more: dict[str, Any] = {"description": option.help} if option else {}
        if field.default_factory is not dataclasses.MISSING:
            more["default_factory"] = field.default_factory
        else:
            more["default"] = ... if field.default is dataclasses.MISSING else field.default
        fields[field.name] = (hints[field.name], Field(**more))
    return fields


def checked(arguments_model: type[BaseModel], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a tool's arguments, those of nested models as dictionaries.

    Raises UsageError with all problems.
    """
    try:
        parsed = arguments_model.model_validate(dict(arguments))
    except ValidationError as error:
        names = list(arguments_model.model_fields)
        problems = [_problem(one, names) for one in error.errors(include_url=False, include_context=False)]
        hint = f"the arguments are {', '.join(names)}" if any("argument '" in one for one in problems) else ""
        raise UsageError(problems[0], problems=problems, hint=hint) from None
    return {name: _plain(getattr(parsed, name)) for name in arguments_model.model_fields}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in value.model_fields_set}
    return value


def _problem(error: Any, names: list[str]) -> str:
    place = ".".join(map(str, error["loc"])) or "the arguments"
    if error["type"] == "extra_forbidden":
        return with_closest(f"unknown argument '{place}'", str(error["loc"][-1]), names)
    if error["type"] == "missing":
        return f"missing argument '{place}'"
    return f"'{place}': {error['msg']}"
