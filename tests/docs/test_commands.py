"""Every `xpk` command in the README and the documentation parses; nothing is executed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click
import pytest

from xpk.cli.main import main, xpk
from xpk.cli.terminal.output import Console

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_SHELLS = ("", "console", "sh", "bash")
_ELLIPSIS = "..."  # stands for options that an example leaves out


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `xpk` command in the shell blocks of a page, continued lines joined."""
    for _, language, block in _BLOCK.findall(text):
        if language not in _SHELLS:
            continue
        for line in re.sub(r"\\\n *", "", block).splitlines():
            words = line.strip().removeprefix("$ ")
            if re.match(r"xpk [a-z-]", words) and not re.search(r"^xpk \w+ \.\.\.", words):
                yield _arguments(words)


def _arguments(line: str) -> list[str]:
    """Return the words after `xpk`, up to a redirection or the next command of the line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;<>"):
            break
        words.append(word)
    return words[1:]


def parse(arguments: list[str]) -> None:
    """Parse a command line. Raises click.UsageError for an unknown command or flag, or a value that is not allowed."""
    command: click.Command = xpk
    context = click.Context(command, info_name="xpk", obj=Console(), **command.context_settings)
    while True:
        if isinstance(command, click.Group):
            _, arguments, _ = command.make_parser(context).parse_args(args=list(arguments))
            if not arguments:
                return
            _, child, arguments = command.resolve_command(context, arguments)
            assert child is not None
            command, context = child, click.Context(child, info_name=child.name, parent=context, obj=Console())
            continue
        values, left, _ = command.make_parser(context).parse_args(args=_own(command, arguments))
        _check_values(command, context, values)
        if unexpected := [word for word in left if word != _ELLIPSIS]:
            raise click.UsageError(f"unexpected argument {unexpected[0]}", context)
        return


def _own(command: click.Command, arguments: list[str]) -> list[str]:
    """Return the arguments before `--`, after which those of the trainer or of a program follow."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if any(parameter.name == "dry_run" and isinstance(parameter.type, click.Choice) for parameter in command.params):
        return ["--dry-run=client" if word == "--dry-run" else word for word in own]  # its value is optional
    return own


def _check_values(command: click.Command, context: click.Context, values: dict[str, object]) -> None:
    """Check values of choices and numbers; placeholders in capitals and files that do not exist are allowed."""
    for parameter in command.params:
        given = values.get(parameter.name or "")
        for value in given if isinstance(given, list | tuple) else [given]:
            if isinstance(value, str) and isinstance(parameter.type, click.Choice | click.IntRange):
                cast("click.ParamType[object]", parameter.type).convert(value, parameter, context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_the_documentation_parse(page: Path) -> None:
    wrong = []
    for arguments in commands_of(page.read_text(encoding="utf-8")):
        try:
            parse(arguments)
        except click.UsageError as error:
            wrong.append(f"xpk {shlex.join(arguments)}: {error.format_message()}")
    assert not wrong


def test_commands_are_found_and_wrong_ones_are_noticed() -> None:
    text = "```console\n$ xpk workload list \\\n    -A  # all\nNAME\n```\n\n  ```\n  xpk docs queues | head\n  ```\n"
    assert list(commands_of(text)) == [["workload", "list", "-A"], ["docs", "queues"]]
    assert len([1 for page in PAGES for _ in commands_of(page.read_text(encoding="utf-8"))]) > 150
    for line in ("workload list --no-such-flag", "workload nope", "cluster list -o nope", "docs a b"):
        with pytest.raises(click.UsageError):
            parse(line.split())


def cloud_clusters() -> list[str]:
    """Return the commands of all pages that create a cluster of GKE in a zone that exists."""
    every = (arguments for page in PAGES for arguments in commands_of(page.read_text(encoding="utf-8")))
    create = (arguments for arguments in every if arguments[:2] == ["cluster", "create"])
    return sorted({shlex.join(arguments) for arguments in create if "my-project" in arguments})


@pytest.mark.parametrize("line", cloud_clusters())
def test_clusters_in_the_cloud_are_planned(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials a plan is that of an empty project."""
    monkeypatch.setenv("XPK_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "no-key.json"))
    assert main([*(word for word in shlex.split(line) if word != "--dry-run"), "--dry-run"]) == 0
