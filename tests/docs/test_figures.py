"""Figures that the pages show below a command are those that the program prints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, commands_of
from xpk.cli.main import main

# Commands that print the same on every machine, and need neither a cluster nor a run.
PRINTED = (["workload", "estimate"], ["plan", "capacity"], ["plan", "goodput", "--config"])
_LEFT_OUT = "..."


def blocks() -> Iterator[tuple[Path, str]]:
    """Yield the blocks of pages that show the output of such a command, with their page."""
    for page in PAGES:
        for block in re.findall(
            r"^```console\n\$ .*?^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            commands = list(commands_of(block))
            if len(commands) == 1 and any(commands[0][: len(words)] == words for words in PRINTED) and _shown(block):
                yield page, block


def _shown(block: str) -> list[str]:
    """Return the lines below the command of a block."""
    return block.splitlines()[2:-1]


def _subjects(line: str) -> list[str]:
    """Return what a line is about: its first cell, or else that without its figures."""
    cell = re.split(r":|  ", line)[0]
    return [cell, re.sub(r"\d[\d.,]*", "0", cell)]


def written_anew(block: str, printed: list[str]) -> str:
    """Return a block with the lines that are printed about the same subjects."""
    lines = block.splitlines()
    for number, line in enumerate(lines[2:-1], start=2):
        if line not in (_LEFT_OUT, ""):
            same = (one for kind in (0, 1) for one in printed if _subjects(one)[kind] == _subjects(line)[kind])
            lines[number] = next(same, line)
    return "\n".join(lines)


@pytest.mark.parametrize(("page", "block"), [pytest.param(*one, id=one[0].name) for one in blocks()])
def test_figures_are_those_that_the_program_prints(
    page: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XPK_CONFIG_DIR", str(tmp_path))
    (command,) = commands_of(block)
    assert main(command) == 0
    printed = capsys.readouterr().out.splitlines()
    if os.environ.get("XPK_UPDATE_GOLDEN"):
        text = page.read_text(encoding="utf-8")
        block, former = written_anew(block, printed), block
        page.write_text(text.replace(former, block), encoding="utf-8")
    shown = [line for line in _shown(block) if line not in (_LEFT_OUT, "")]
    assert [line for line in shown if line not in printed] == [], "run `make golden`"
    assert [printed.index(line) for line in shown] == sorted(printed.index(line) for line in shown)


def test_a_block_is_written_anew_without_lines_that_it_leaves_out() -> None:
    block = "```console\n$ xpk x\nsteps:  4\n...\n1 x v6e-8  1.5\n\n2 failures a day\n```"
    printed = ["steps:  4", "chips:  4", "8 x v6e-8  1.5", "1 x v6e-8  1.25", "", "3 failures a day"]
    assert written_anew(block, printed) == block.replace("1.5", "1.25").replace("2 f", "3 f")
