"""Values of settings, as text or as YAML, and their types."""

import difflib
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from trainer.errors import Problem

_AUTO = "auto"


def scalar(text: str) -> Any:
    """Parse a value as YAML, but read 3e-4 as a number, which YAML 1.1 does not."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def typed(key: str, value: Any, fields: Mapping[str, Any]) -> Any:
    """Return `value` converted to the type of the setting `key` in `fields`, or a Problem."""
    if key not in fields:
        hint = (
            closest(key, list(fields))
            or f"Valid sections: {', '.join(sorted({name.partition('.')[0] for name in fields}))}"
        )
        return Problem(f"unknown setting {key!r}", hint)
    kind, *others = typing.get_args(fields[key]) or (fields[key],)
    if others and value == _AUTO:
        return _AUTO
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str:
        return "" if value is None else str(value)
    if kind is int and type(value) is int:
        return value
    if kind in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is not None and (kind is float or number.is_integer()):
            return kind(number) if kind is float else int(number)
    words = {int: "an integer", float: "a number", bool: "true or false"}
    expected = f"{words[typing.cast(type, kind)]}{' or auto' if others else ''}"
    return Problem(f"{key}={value!r} is not {expected}", f"Write --set {key}=VALUE")


def closest(word: str, known: Sequence[str]) -> str:
    """Return "Did you mean ...?", or an empty string if nothing is similar."""
    matches = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if not matches:
        matches = [name for name in known if name.split(".")[-1] == word.split(".")[-1]][:1]
    return f"Did you mean {matches[0]!r}?" if matches else ""
