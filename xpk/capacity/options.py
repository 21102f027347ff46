"""Options of providers: their classes, checks and parsers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from xpk.model.errors import Problems, UsageError
from xpk.model.options import Limits, option, options_of, range_text, rule_problems, type_problems

CREATE, RESIZE, ADAPT, FIND, IMAGE = "create", "resize", "adapt", "find", "image"  # FIND: all that name a cluster
_DIGITS = re.compile(r"[0-9]{1,15}")


def parse_text(text: str, name: str) -> str:
    """Return a text as it is."""
    return text


def parse_whole(limits: Limits) -> Callable[[str, str], int]:
    """Return the parser of a whole number; `limits` are for its message, and are checked with the other fields."""

    def parse(text: str, name: str) -> int:
        if not _DIGITS.fullmatch(text):
            raise UsageError(
                f"{name} must be an integer {range_text(limits)}, got '{text}'", hint=f"{name.removeprefix('--')} N"
            )
        return int(text)

    return parse


def parse_path(text: str, name: str) -> Path:
    """Return a path."""
    return Path(text)


def split_list(text: str, name: str) -> tuple[str, ...]:
    """Return the parts of a text between commas or spaces."""
    return tuple(filter(None, re.split(r"[,\s]+", text)))


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


def limit_problems(options: ProviderOptions) -> list[str]:
    """Return the values beyond the limits of their options, one line each."""
    return [
        problem
        for field, option in options_of(type(options))
        for problem in rule_problems(option.flag, getattr(options, field.name), option)
    ]


def check_types(options: Any) -> None:
    """Raise UsageError with all fields that have a value of a wrong type."""
    problems, name = Problems(), type(options).__name__
    for field in fields(options):
        for problem in type_problems(options, field):
            problems.add(f"{name}: {problem}")
    problems.check(f"invalid {name}", hint="")
