"""Man pages: one for each command, well-formed, with every option."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.docs.command_tree import commands
from tools.man_pages import escaped, main, pages
from xpk.cli.main import xpk

PAGES = dict(pages())
COMMANDS = [("xpk", xpk), *commands(xpk, "xpk")]
MACROS = (".TH", ".SH", ".PP", ".TP", ".B", ".nf", ".fi")
ESCAPE = re.compile(r"\\(?:-|&|e|\(aq|\(ga|\[u[0-9A-F]{4,}\])")


def test_each_command_has_a_page_in_the_folder(tmp_path: Path) -> None:
    main(tmp_path / "man1")
    written = {file.name for file in (tmp_path / "man1").iterdir()}
    assert written == {f"{path.replace(' ', '-')}.1" for path, command in COMMANDS if not command.hidden}
    assert len(written) > 40


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_well_formed(name: str) -> None:
    lines = PAGES[name].splitlines()
    assert lines[0].startswith(".TH ") and lines[1] == ".SH NAME" and ".SH SYNOPSIS" in lines
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        assert line and not line.startswith("'"), "an empty line or a control line of roff"
        assert not line.startswith(".") or line.split()[0] in MACROS, line
        assert line not in (".TP", ".PP") or after, line
        assert line.isascii() and "\\" not in ESCAPE.sub("", line), line
    assert lines.count(".nf") == lines.count(".fi")
    for other in re.findall(r"([a-z\\-]+)\(1\)", PAGES[name]):
        assert f"{other.replace(chr(92), '')}.1" in PAGES


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_every_visible_option_is_on_the_page(path: str, command: click.Command) -> None:
    text = PAGES[f"{path.replace(' ', '-')}.1"]
    for parameter in command.get_params(click.Context(command)):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert f".B {escaped(parameter.opts[0])}" in text or f" {escaped(parameter.opts[-1])}" in text
    if path == "xpk workload create":
        assert ".SH SCHEDULING" in text and ".SH EXAMPLES" in text
        assert f"\n{escaped('xpk workload create -f mine.yaml --num-slices 4')}\n" in text


def test_text_of_a_command_is_not_a_macro() -> None:
    assert escaped(".SH 'a'\\-…") == "\\&.SH \\(aqa\\(aq\\e\\-\\[u2026]"
