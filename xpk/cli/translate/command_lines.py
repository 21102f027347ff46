"""Translation of command lines of other tools, which the first word names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import PurePosixPath

import click

from xpk.cli.translate import gcluster, upstream
from xpk.cli.translate.flags import Draft, Translation
from xpk.cli.translate.words import VARIABLE, CommandLine, ShellSyntaxError, split_commands
from xpk.model.errors import UsageError

_HINT = "pass a command line of gcluster or of Google's xpk, such as `xpk translate 'gcluster job list'`"


def translate_text(text: str, root: click.Group) -> list[Translation]:
    """Translate shell text, one command a line. `root`: the commands of this xpk.

    Raises UsageError, with all problems, for a line that does not begin with the name of a supported tool.
    """
    commands = _commands(text, root)
    if not commands:
        raise UsageError("there is no command line to translate", hint=_HINT)
    unknown = [f"line {line.number}: {_problem(line.words)}" for line in commands if _tool(line.words) is None]
    if unknown:
        raise UsageError(unknown[0], problems=unknown, hint=_HINT)
    return [translate_words(line.words, root, line=line.number) for line in commands]


def translate_words(words: Sequence[str], root: click.Group, *, line: int = 1) -> Translation:
    """Translate the words of one command line. Raises UsageError if they do not name a supported tool."""
    tool = _tool(words)
    if tool is None:
        raise UsageError(_problem(words), hint=_HINT)
    draft = Draft()
    _translators(root)[tool](words[1:], draft)
    return draft.translation(line, words)


def _commands(text: str, root: click.Group) -> list[CommandLine]:
    """Return the commands of a text. An error names the command that a shell would have to read."""
    try:
        return split_commands(text)
    except ShellSyntaxError as error:
        tool = _tool(error.words)
        if tool is None:
            raise
        path = " ".join([tool, *takewhile(str.isalpha, error.words[1:3])])
        notes = translate_words(error.words, root).notes
        refusals = [f"{note.part} has no equivalent: {note.text}" for note in notes if note.part == path]
        raise UsageError(f"{error.message} in `{path}`", hint=refusals[0] if refusals else error.hint) from None


def _translators(root: click.Group) -> Mapping[str, Callable[[Sequence[str], Draft], None]]:
    xpk = partial(upstream.translate, root=root)
    return {"gcluster": gcluster.translate, "ghpc": gcluster.translate, "xpk": xpk, "xpk.py": xpk}


def _tool(words: Sequence[str]) -> str | None:
    """Return the tool that the first word names, with or without its folder; $GCLUSTER is gcluster."""
    name = PurePosixPath(words[0]).name if words else ""
    if name.startswith((VARIABLE, "$")):
        name = name[1:].strip("{}").lower()
    return name if name in ("gcluster", "ghpc", "xpk", "xpk.py") else None


def _problem(words: Sequence[str]) -> str:
    return f"'{words[0]}' is neither gcluster nor xpk" if words else "there is no command line to translate"
