"""Flags of a command line, read by a table of flags, and the result of translating one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xpk.cli.translate.words import join, readable


@dataclass(frozen=True, slots=True)
class Note:
    """A part of a command line that has no equivalent."""

    part: str  # flag, argument or command
    text: str  # what to do instead, or why nothing is needed
    lost: bool  # whether its effect is lost; false if it is not needed here


@dataclass(frozen=True, slots=True)
class Translation:
    """A command line of another tool in terms of this one."""

    line: int  # number of the line in the input, from 1
    source: str  # the command line as it was given
    command: str | None  # the equivalent command line; null if there is none
    words: tuple[str, ...]  # words of that command line after `xpk`, without quotes; empty if there is none
    notes: tuple[Note, ...]  # its parts that have no equivalent
    complete: bool  # whether no effect is lost


@dataclass(slots=True)
class Draft:
    """A translation in progress: the words of a command of `xpk`, without `xpk` itself."""

    words: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    refused: bool = False  # whether there is no equivalent at all

    def lose(self, part: str, text: str) -> None:
        """Note a part whose effect is lost."""
        self.notes.append(Note(readable(part), readable(text), lost=True))

    def omit(self, part: str, text: str) -> None:
        """Note a part that is not needed."""
        self.notes.append(Note(readable(part), readable(text), lost=False))

    def refuse(self, part: str, text: str) -> None:
        """Note a part without which the command has no equivalent."""
        self.lose(part, text)
        self.refused = True

    def add(self, flag: str, value: str | None = None) -> None:
        """Add a flag of this xpk. A value that looks like a flag is joined to it."""
        if value is None:
            self.words += [] if flag in self.words else [flag]
        else:
            self.words += [f"{flag}={value}"] if value.startswith("-") else [flag, value]

    def translation(self, line: int, source: Sequence[str]) -> Translation:
        """Return the result for a command line with these words."""
        return Translation(
            line=line,
            source=join(source),
            command=None if self.refused else join(["xpk", *self.words]),
            words=() if self.refused else tuple(map(readable, self.words)),
            notes=tuple(self.notes),
            complete=not any(note.lost for note in self.notes),
        )


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as it was given. `name`: its canonical name; `value`: None for a switch without a value."""

    spelling: str
    name: str
    value: str | None


def read_flags(
    words: Sequence[str], names: Mapping[str, str], switches: Iterable[str], draft: Draft
) -> Iterator[Flag | str]:
    """Yield the flags and the positional arguments of a command line, as cobra, click and argparse read them.

    `names` maps every spelling to a flag's canonical name; `switches` are the names of those that take no value.
    Unknown flags, and flags without their value, are noted as lost.
    """
    no_value, remaining = set(switches), list(words)
    while remaining:
        word = remaining.pop(0)
        if word == "--" or not word.startswith("-") or word == "-":
            yield from remaining if word == "--" else [word]
            if word == "--":
                return
            continue
        spelling, equals, value = _parts(word, names)
        name = names.get(spelling)
        if name is None:
            close = difflib.get_close_matches(spelling, names, 3)
            draft.lose(spelling, f"unknown flag; the closest are {', '.join(close)}" if close else "unknown flag")
            if not equals and remaining and not remaining[0].startswith("-"):
                remaining.pop(0)  # its value, in all likelihood
        elif name in no_value:
            if value and not equals:  # -fc PROD: two short flags
                remaining.insert(0, f"-{value}")
            yield Flag(spelling, name, value if equals else None)
        elif equals or value:
            yield Flag(spelling, name, value)
        elif remaining and remaining[0] not in names:
            yield Flag(spelling, name, remaining.pop(0))
        else:
            draft.lose(spelling, "it has no value")


def _parts(word: str, names: Mapping[str, str]) -> tuple[str, str, str]:
    """Return a flag's spelling, "=" if it has one, and what is joined to it: `--name=W`, `-n=W` or `-nW`."""
    spelling, equals, value = word.partition("=")
    if not word.startswith("--") and len(spelling) > 2 and spelling not in names:
        return word[:2], "", word[2:]
    return spelling, equals, value
