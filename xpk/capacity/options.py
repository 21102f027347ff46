"""Options of providers: each is written once, as a field whose metadata has its flag, help, variables and check."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from xpk.model.errors import UsageError

CREATE, RESIZE, ADAPT, FIND, IMAGE = "create", "resize", "adapt", "find", "image"  # FIND: all that name a cluster
_OPTION = "option"
_DIGITS = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The command-line option of a field.

    `flag`: by default the field's name. `prefix`: of the variable that is named after the flag, "" for none.
    `variables`: others of the environment, in their order; the last ones may be `hidden` from help.
    `commands`: those that have the option.
    `parse`: of its text, called with the name that messages use; None for switches and lists of paths.
    `limits`: of a number, both included. `is_time`: written as 90s, 5m, 2h or 1d.
    """

    help: str
    flag: str = ""
    aliases: tuple[str, ...] = ()
    metavar: str | None = None
    prefix: str = ""
    variables: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    commands: tuple[str, ...] = (CREATE,)
    parse: Callable[[str, str], Any] | None = None
    limits: tuple[int, int | None] | None = None
    is_time: bool = False

    @property
    def parameter(self) -> str:
        """Return the name of click's parameter."""
        return self.flag.lstrip("-").replace("-", "_")

    def named(self, field: str) -> Option:
        """Return the option with the flag and the variables that it has on a field of this name."""
        flag = self.flag or f"--{field.replace('_', '-')}"
        own = (f"{self.prefix}{flag[2:].replace('-', '_').upper()}",) if self.prefix else ()
        return replace(self, flag=flag, variables=(*own, *self.variables))


def option(default: Any, **more: Any) -> Any:
    """Return a field with an option."""
    return field(default=default, metadata={_OPTION: Option(**more)})


def options_of(kind: type[Any]) -> Iterator[tuple[Field[Any], Option]]:
    """Yield the fields that have an option, in their order."""
    for each in fields(kind):
        if found := each.metadata.get(_OPTION):
            yield each, found.named(each.name)


def limit_problems(options: Any) -> list[str]:
    """Return the values beyond the limits of their options, one line each."""
    found = []
    for each, own in options_of(type(options)):
        value = getattr(options, each.name)
        if own.limits and value is not None:
            low, high = own.limits
            if value < low or (high is not None and value > high):
                found.append(f"{own.flag} is '{value:g}', {_whole(own.limits)}")
    return found


def parse_text(text: str, name: str) -> str:
    """Return a text as it is."""
    return text


def parse_whole(limits: tuple[int, int | None]) -> Callable[[str, str], int]:
    """Return the parser of a whole number; `limits` are for its message, and are checked with the other fields."""

    def parse(text: str, name: str) -> int:
        if not _DIGITS.fullmatch(text):
            raise UsageError(f"{name} is '{text}', {_whole(limits)}", hint=f"{name.removeprefix('--')} N")
        return int(text)

    return parse


def parse_path(text: str, name: str) -> Path:
    """Return a path."""
    return Path(text)


def split_list(text: str, name: str) -> tuple[str, ...]:
    """Return the parts of a text between commas or spaces."""
    return tuple(filter(None, re.split(r"[,\s]+", text)))


def _whole(limits: tuple[int, int | None]) -> str:
    low, high = limits
    return f"not a whole number from {low} {'on' if high is None else f'to {high}'}"


def _manifest(name: str) -> Any:
    return option(
        None,
        metavar="SOURCE",
        help=f"Manifest of {name}: PATH or https URL, with #sha256=HEX unless it is an official release.",
        prefix="XPK_",
        hidden=(f"XPK_E2E_{name.upper()}_MANIFEST",),
        commands=(CREATE, RESIZE, ADAPT),
        parse=parse_text,
    )


class ProviderOptions:
    """Options of one provider. Subclasses are frozen dataclasses whose fields are made by `option`."""

    __slots__ = ()
    provider: ClassVar[str]

    @property
    def may_be_empty(self) -> bool:
        """Return whether a new cluster may have no slices."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions(ProviderOptions):
    """Sources of the controllers' manifests; None for the official release."""

    jobset_manifest: str | None = _manifest("JobSet")
    kueue_manifest: str | None = _manifest("Kueue")

    def manifest_of(self, controller: str) -> str | None:
        """Return the manifest of a controller, by the controller's name."""
        source: str | None = getattr(self, f"{controller.lower()}_manifest")
        return source
