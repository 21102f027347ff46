"""`xpk translate`, and the hidden `xpk gcluster`, which runs the translation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from xpk.cli.options import output_option
from xpk.cli.terminal.help import Command
from xpk.cli.terminal.output import Console, echo
from xpk.cli.translate.command_lines import translate_text, translate_words
from xpk.cli.translate.flags import Translation
from xpk.model.errors import UsageError
from xpk.model.names import text_problems

_INCOMPLETE = 1
_VERBATIM = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command(cls=Command, context_settings=_VERBATIM)
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED)
@output_option
@click.pass_context
def translate(ctx: click.Context, command_line: tuple[str, ...], output: str | None) -> int:
    """Translate command lines of gcluster (Cluster Toolkit) and of Google's xpk into commands of this xpk.

    COMMAND_LINE is a line in quotes or the words of one; without it, lines are read from standard input. Nothing is
    run. Notes on stderr name each flag without an equivalent, and what to do instead. The exit code is 0 if nothing
    is lost, and 1 otherwise.
    """
    console: Console = ctx.obj.choosing(output)
    translations = _translate(command_line, _root(ctx))
    if console.is_data:
        console.data([asdict(translation) for translation in translations])
    for translation in translations:
        if translation.command is not None and not console.is_data:
            echo(translation.command)
        _print_notes(console, translation, is_one=len(translations) == 1)
    return 0 if all(translation.complete for translation in translations) else _INCOMPLETE


@click.command(cls=Command, context_settings={**_VERBATIM, "help_option_names": []}, hidden=True)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def gcluster(ctx: click.Context, words: tuple[str, ...]) -> int | None:
    """Run a command line of gcluster: print its translation on stderr, then run that.

    A command line is refused if an effect would be lost.
    """
    if not words or words[0] in ("-h", "--help"):
        echo("Usage: xpk gcluster COMMAND_LINE_OF_GCLUSTER, such as `xpk gcluster job list`\n")
        echo("Prints the translated command and runs it; `xpk docs migrating-from-gcluster` lists all commands.")
        return None
    root, console = _root(ctx), ctx.obj
    translation = translate_words(["gcluster", *words], root)
    if translation.command is None or not translation.complete:
        problems = [f"{note.part} has no equivalent: {note.text}" for note in translation.notes if note.lost]
        without = f"without it, run: {translation.command}" if translation.command else ""
        raise UsageError(problems[0], problems=problems, hint=without or "`xpk docs migrating-from-gcluster`")
    _print_notes(console, translation, is_one=True)
    console.tell(translation.command)
    with root.make_context("xpk", [*_global_flags(console), *translation.words]) as context:
        code: int | None = root.invoke(context)
        return code


def _global_flags(console: Console) -> list[str]:
    """Return the flags of `xpk` itself that this command was given."""
    color = {None: "auto", True: "always", False: "never"}[console.color]
    return ["--output", console.output, "--color", color, *(["--quiet"] if console.quiet else [])]


def _root(ctx: click.Context) -> click.Group:
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    return root


def _translate(command_line: Sequence[str], root: click.Group) -> list[Translation]:
    """Translate what was given, or standard input."""
    if not command_line or tuple(command_line) == ("-",):
        if sys.stdin.isatty():
            raise UsageError(
                "no command line given", hint="`xpk translate 'gcluster job list'`, or lines on standard input"
            )
        text = sys.stdin.read()
        if problems := text_problems(text):
            raise UsageError(f"standard input {problems[0]}", hint="write command lines as UTF-8 text")
        return translate_text(text, root)
    if any(space in command_line[0] for space in " \t\n"):
        return translate_text("\n".join(command_line), root)
    return [translate_words(command_line, root)]


def _print_notes(console: Console, translation: Translation, *, is_one: bool) -> None:
    """Print a line for each part without an equivalent."""
    line = "" if is_one else f"line {translation.line}: "
    for note in translation.notes:
        if note.lost:
            console.warn(f"{line}{note.part} is not translated: {note.text}")
        else:
            console.tell(f"{line}{note.part}: {note.text}")
