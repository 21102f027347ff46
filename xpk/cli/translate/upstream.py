"""Command lines of Google's xpk in terms of this one: the same, without flags that have no effect here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import click

from xpk.cli.google_xpk import (
    ALL_WITHOUT,
    CLUSTER_COMMANDS,
    REMOVED_COMMANDS,
    WORKLOAD_COMMANDS,
    CompatibleCommand,
    Ignored,
    joined,
)
from xpk.cli.translate.flags import Draft, read_flags

_INSTEAD: Mapping[str, Mapping[str, tuple[str, str]]] = {"cluster": CLUSTER_COMMANDS, "workload": WORKLOAD_COMMANDS}


def translate(words: Sequence[str], draft: Draft, root: click.Group) -> None:
    """Translate the words after `xpk`. `root`: the commands of this xpk."""
    command, arguments = _find(list(words), draft, root)
    if command is None:
        return
    path = " ".join(draft.words)
    ignored = command.ignored if isinstance(command, CompatibleCommand) else {}
    rejected = command.foreign if isinstance(command, CompatibleCommand) else {}
    negations = [f"--no-{flag[2:]}" for flag, reason in ignored.items() if not reason.takes_value]
    own, switches = _options(command, ignored)
    switches |= {*(flag for flag, reason in ignored.items() if not reason.takes_value), *negations, *rejected} - own
    names = {flag: flag for flag in (*own, *ignored, *negations, *rejected)}
    end = arguments.index("--") if "--" in arguments else len(arguments)
    items = list(read_flags(joined(arguments[:end]), names, switches, draft))
    for item in items:
        if isinstance(item, str):
            draft.words.append(item)
        elif item.name in own:
            draft.add(item.name, item.value)
        elif item.name in rejected:
            draft.refuse(item.spelling, rejected[item.name])
        elif item.name in ignored:
            reason = ignored[item.name]
            (draft.omit if reason.unneeded else draft.lose)(item.spelling, reason.why)
    selecting, everything = ALL_WITHOUT.get(path, ((), ""))
    if everything and not any(isinstance(item, str) or item.name in (*selecting, everything) for item in items):
        draft.add(everything)
    draft.words += arguments[end:]  # of the trainer


def _options(command: click.Command, ignored: Mapping[str, Ignored]) -> tuple[set[str], set[str]]:
    """Return the spellings of a command's own flags, and of those that take no value."""
    own: set[str] = set()
    switches: set[str] = set()
    for option in command.params:
        if isinstance(option, click.Option) and not (option.hidden and option.opts[0] in ignored):
            own |= {*option.opts, *option.secondary_opts}
            # As in kubectl, a value of --dry-run requires `=`.
            is_switch = option.is_flag or option.name == "dry_run"
            switches |= {*option.opts, *option.secondary_opts} if is_switch else set()
    return own, switches


def _find(words: list[str], draft: Draft, root: click.Group) -> tuple[click.Command | None, list[str]]:
    """Return the command of this xpk that a command line names, and the remaining words; None with a note."""
    command: click.Command = root
    path: list[str] = []
    while isinstance(command, click.Group):
        context = click.Context(command)
        word = words.pop(0) if words else ""
        name, why = _INSTEAD.get(" ".join(path), {}).get(word, (word, ""))
        if why:
            draft.lose(word, why)
        if " ".join([*path, word]) in REMOVED_COMMANDS:
            draft.refuse(" ".join([*path, word]), REMOVED_COMMANDS[" ".join([*path, word])])
            return None, words
        child = command.get_command(context, name) if name and not name.startswith("-") else None
        if child is None:
            close = difflib.get_close_matches(word, command.list_commands(context), 3)
            text = f"unknown command; the closest are {', '.join(close)}" if close else "unknown command"
            draft.refuse(" ".join(["xpk", *path, word]).rstrip(), text)
            return None, words
        path.append(child.name or name)
        command = child
    draft.words += path
    return command, words
