"""Command lines of gcluster in terms of this xpk, by the table in gcluster.yaml."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import yaml

from xpk.cli.translate import gcluster_values as values
from xpk.cli.translate.flags import Draft, Flag, read_flags
from xpk.cli.translate.gcluster_capacity import add_accelerator
from xpk.model.yaml_loader import LOADER

_NAME, _SETTING = "NAME", "SETTING"  # in the table: a positional argument, and a setting with its value
_SETTINGS = {"location": "zone"}  # settings with another name here
_OFF = ("0", "f", "false")
# Conversions of one value.
_FORMS: Mapping[str, Callable[[Draft, str, str, str], None]] = {
    "text": values.add_text,
    "priority": values.add_priority,
    "integer": values.add_integer,
    "seconds": values.add_seconds,
    "zone": values.add_zone,
    "mount": values.add_mount,
    "timeout": values.add_timeout,
    "secret": values.add_secret,
}
# Conversions of several flags together; they read those that they need.
_OF_SEVERAL: Mapping[str, Callable[[Draft, Mapping[str, str]], None]] = {
    "capacity": add_accelerator,
    "provisioning": values.add_provisioning,
}


@cache
def table() -> dict[str, dict[str, Any]]:
    """Return the commands of the table, each a path such as `job submit`, with their flags."""
    text = resources.files("xpk.cli.translate").joinpath("gcluster.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = yaml.load(text, Loader=LOADER)["commands"]  # noqa: S506  # a safe loader
    return loaded


def translate(words: Sequence[str], draft: Draft) -> None:
    """Translate the words after `gcluster`."""
    path, arguments = _command(words)
    row = table().get(path)
    if row is None:
        close = ", ".join(difflib.get_close_matches(path, table(), 3, 0.5)) or "job submit, job list, job logs"
        draft.refuse(f"gcluster {path}".rstrip(), f"unknown command; the closest are {close}")
        return
    if "refused" in row:
        draft.refuse(f"gcluster {path}", row["refused"])
        return
    draft.words += row["run"].split()
    flags = row.get("flags", {})
    spellings = {spelling: name for name, flag in flags.items() for spelling in _spellings(name, flag)}
    switches = [name for name, flag in flags.items() if flag.get("switch")]
    items = list(read_flags(arguments, spellings, switches, draft))
    _add_arguments(draft, path, [item for item in items if isinstance(item, str)])
    _add_flags(draft, row, [item for item in items if isinstance(item, Flag)])


def _command(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the path of a command and the remaining words: the longest path in the table, else the first words."""
    for length in (3, 2, 1):
        if (path := " ".join(words[:length])) in table():
            return path, words[length:]
    return " ".join(word for word in words[:2] if not word.startswith("-")), ()


def _spellings(name: str, flag: Mapping[str, Any]) -> list[str]:
    return [name, *([flag["short"]] if "short" in flag else []), *flag.get("old", [])]


def _add_arguments(draft: Draft, path: str, arguments: list[str]) -> None:
    """Add the positional arguments of a command."""
    target = table()[path].get("argument")
    if target == _SETTING:
        if len(arguments) != 2:
            draft.refuse(f"gcluster {path}", "expected a setting and its value")
            return
        draft.words += [_SETTINGS.get(arguments[0], arguments[0]), arguments[1]]
        return
    if target == _NAME and not arguments:
        draft.refuse(f"gcluster {path}", "expected a name")
    elif target and arguments:
        draft.words += [arguments.pop(0)] if target == _NAME else [target, arguments.pop(0)]
    for argument in arguments:
        draft.lose(argument, "unexpected argument")


def _add_flags(draft: Draft, row: Mapping[str, Any], flags: Sequence[Flag]) -> None:
    """Add the flags, the one that becomes a positional argument first, and the defaults that differ."""
    rows, converted = row.get("flags", {}), set[str]()
    flags = [flag for flag in flags if not (rows[flag.name].get("switch") and (flag.value or "").lower() in _OFF)]
    value_of = {flag.name: flag.value or "" for flag in flags}
    for flag in sorted(flags, key=lambda flag: rows[flag.name].get("to") != _NAME):
        form = rows[flag.name].get("form", "text")
        if form not in _OF_SEVERAL:
            _add(draft, rows[flag.name], flag, form)
        elif form not in converted:
            converted.add(form)
            _OF_SEVERAL[form](draft, value_of)
    for name in row.get("required", ()):
        if name not in value_of and not draft.refused:
            draft.refuse(name, "gcluster requires this flag")
    for name, entry in rows.items():
        if "absent" in entry and name not in value_of:
            draft.add(entry["to"], entry["absent"])


def _add(draft: Draft, entry: Mapping[str, Any], flag: Flag, form: str) -> None:
    """Add one flag by its row of the table."""
    value = flag.value or ""
    if "refused" in entry:
        draft.refuse(flag.spelling, entry["refused"])
    elif "unneeded" in entry:
        draft.omit(flag.spelling, entry["unneeded"])
    elif value in entry.get("values", ()):
        draft.add(entry["to"], entry["values"][value])
    elif "values" in entry or "instead" in entry:
        draft.lose(flag.spelling, entry.get("instead") or f"unknown value '{value}'")
    elif entry.get("switch"):
        draft.add(entry["to"])
    elif entry.get("to") == _NAME:
        draft.words.append(value)
    else:
        for more in entry.get("with", ()):
            draft.add(more)
        _FORMS[form](draft, flag.spelling, entry.get("to", ""), value)
