"""Words of shell command lines. Variables that a shell would expand are kept as variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from xpk.model.errors import UsageError

VARIABLE = "\ue000"  # stands for a `$` that a shell expands; a private-use character, which no command line contains

_SPACE = " \t\r\n"
_OPERATORS = "|&;<>()"
_SPECIAL_IN_QUOTES = re.compile(r'([\\"`$])')


@dataclass(slots=True)
class CommandLine:
    """Words of one command and the number of its first line, from 1."""

    number: int
    words: list[str] = field(default_factory=list)


class ShellSyntaxError(UsageError):
    """Text that only a shell can read. `words`: those of its command so far."""

    words: tuple[str, ...] = ()


def split_commands(text: str) -> list[CommandLine]:
    """Return the commands of a shell script without empty lines and comments.

    A `$` outside single quotes becomes VARIABLE. Raises ShellSyntaxError for an unclosed quote, and for what needs a
    shell: operators and command substitution.
    """
    return [command for command in _Scanner(text).commands() if command.words]


def join(words: Sequence[str]) -> str:
    """Return words as one command line for a shell; the inverse of `split_commands` for one command."""
    return " ".join(quote(word) for word in words)


def quote(word: str) -> str:
    """Return a word for a shell: in double quotes if it holds variables, otherwise as `shlex.quote` does."""
    if VARIABLE not in word:
        return shlex.quote(word)
    text = _SPECIAL_IN_QUOTES.sub(r"\\\1", word)
    return readable(f'"{text}"')


def readable(text: str) -> str:
    """Return a text for people and programs: with `$` before variables."""
    return text.replace(VARIABLE, "$")


def has_variables(word: str) -> bool:
    """Return whether a shell would expand a part of this word, so that its value is unknown."""
    return VARIABLE in word


class _Scanner:
    """State of reading one text. shlex expands no quotes selectively, and so cannot tell `'$A'` from `"$A"`."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._line = text, 0, 1
        self._command = CommandLine(1)

    def commands(self) -> Iterator[CommandLine]:
        """Yield the commands, one for each line that is not continued."""
        command = self._command
        while self._at < len(self._text):
            char = self._text[self._at]
            if self._text.startswith(("\\\n", "\\\r\n"), self._at):
                self._skip(self._text.index("\n", self._at) + 1 - self._at)
            elif char == "\n":
                yield command
                self._skip(1)
                command = self._command = CommandLine(self._line)
            elif char in _SPACE:
                self._skip(1)
            elif char == "#":
                end = self._text.find("\n", self._at)
                self._skip((len(self._text) if end < 0 else end) - self._at)
            else:
                command.number = command.number if command.words else self._line
                command.words.append(self._word())
        yield command

    def _skip(self, count: int) -> str:
        skipped = self._text[self._at : self._at + count]
        self._at += count
        self._line += skipped.count("\n")
        return skipped

    def _word(self) -> str:
        parts: list[str] = []
        while self._at < len(self._text) and (char := self._text[self._at]) not in _SPACE:
            if self._text.startswith(("\\\n", "\\\r\n"), self._at):
                break
            if char in _OPERATORS:
                self._refuse(f"shell operator '{char}'", "pass only the command itself, and quote its values")
            if char == "'":
                parts.append(self._quoted_by("'"))
            elif char == '"':
                parts.append(self._in_double_quotes())
            elif char == "\\":
                parts.append(self._skip(2)[1:])
            else:
                parts.append(self._character())
        return "".join(parts)

    def _character(self) -> str:
        """Return one character that is not quoted."""
        char = self._text[self._at]
        if char == "`" or self._text.startswith("$(", self._at):
            self._refuse("command substitution", "assign its output to a variable and use the variable here")
        self._skip(1)
        return VARIABLE if char == "$" and self._is_variable() else char

    def _is_variable(self) -> bool:
        """Return whether the name of a variable follows, in braces or not."""
        return bool(re.match(r"[A-Za-z_{0-9@*?#]", self._text[self._at : self._at + 1]))

    def _quoted_by(self, mark: str) -> str:
        end = self._text.find(mark, self._at + 1)
        if end < 0:
            self._refuse(f"no closing {mark}", "close the quote")
        return self._skip(end + 1 - self._at)[1:-1]

    def _in_double_quotes(self) -> str:
        start, parts = self._line, []
        self._skip(1)
        while self._at < len(self._text) and (char := self._text[self._at]) != '"':
            following = self._text[self._at + 1 : self._at + 2]
            if char == "\\" and following in ("$", "`", '"', "\\", "\n"):
                parts.append(self._skip(2)[1:].replace("\n", ""))
            elif char == "\\":
                parts.append(self._skip(1))
            else:
                parts.append(self._character())
        if self._at >= len(self._text):
            self._line = start
            self._refuse('no closing "', "close the quote")
        self._skip(1)
        return "".join(parts)

    def _refuse(self, problem: str, hint: str) -> NoReturn:
        error = ShellSyntaxError(f"line {self._line}: {problem}", hint=hint)
        error.words = tuple(self._command.words)
        raise error
