"""Let MkDocs read pages as GitHub does: links that leave docs/, and lists and tables that follow a paragraph at once.

Python-Markdown wants a blank line before a list or a table, and indents four columns where CommonMark needs three.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(?:#[^)]*)?\)")
_FENCE = re.compile(r" *(```|~~~)")
_ITEM = re.compile(r" *([-*]|\d+\.) ")
_ROW = re.compile(r" *\|")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page's Markdown as Python-Markdown needs it. MkDocs calls this for each page."""
    here = ROOT / "docs" / page.file.src_uri

    def replace(link: re.Match[str]) -> str:
        target = (here.parent / link[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return link[0]  # MkDocs checks it
        return f"{link[1]} (`{target.relative_to(ROOT)}` in the repository)"

    return "\n".join(_spaced(_LINK.sub(replace, markdown).splitlines()))


def _spaced(lines: list[str]) -> Iterator[str]:
    """Yield lines with a blank line before each list and table, and four columns in ordered lists."""
    fenced, before = False, ""
    for line in lines:
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            if re.match(r" {3}\S", line):
                line = f" {line}"
            starts = any(kind.match(line) and not kind.match(before) for kind in (_ITEM, _ROW))
            if starts and before.strip() and not before.startswith(" "):
                yield ""
        yield line
        before = line
