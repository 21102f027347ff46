"""Pages of the documentation, and the `xpk` commands in their shell blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_SHELLS = ("", "console", "sh", "bash")


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `xpk` command in the shell blocks of a page, with continued lines joined."""
    for _, language, block in BLOCK.findall(text):
        if language not in _SHELLS:
            continue
        for line in re.sub(r"\\\n *", "", block).splitlines():
            words = line.strip().removeprefix("$ ")
            if re.match(r"xpk [a-z-]", words) and not re.search(r"^xpk \w+ \.\.\.", words):
                yield arguments_of(words)


def arguments_of(line: str) -> list[str]:
    """Return the words after `xpk`, up to a redirection or the next command on the line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;<>"):
            break
        words.append(word)
    return words[1:]
