"""Tables and lists of facts that fit a terminal: columns are dropped or shortened, words are never broken."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from xpk.model.terminal import printable

_GAP = 2  # columns between two columns
_NARROWEST = 12  # minimum columns of wrapped text


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, the text of a cell, and its behavior on a narrow terminal."""

    title: str
    get: Callable[[Any], object]
    drop: int = 0  # columns with the highest number are dropped first, those with 0 never
    cut: int = 0  # cells may be shortened to this many characters; 0: never
    wrap: bool = False  # cells may have several lines
    key: Callable[[Any], Any] | None = None  # sort key of a row; None: the cell

    def cell(self, item: Any) -> str:
        """Return the text of an item's cell."""
        return "" if (cell := self.get(item)) is None else printable(str(cell))


def table(
    objects: Sequence[Any],
    columns: Sequence[Column],
    *,
    width: int | None = None,
    headers: bool = True,
    whole: bool = False,
) -> str:
    """Return aligned columns under their titles, at most `width` characters a line; "" for an empty list.

    `whole`: no column is dropped or shortened.
    """
    if not objects:
        return ""
    rows = [[column.title for column in columns]] if headers else []
    rows += [[column.cell(item) for column in columns] for item in objects]
    natural = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    words = [
        max((len(word) for row in rows for word in row[index].split()), default=0) for index in range(len(columns))
    ]
    min_widths = [_least(*sizes, whole) for sizes in zip(columns, natural, words, strict=True)]
    if width is not None and whole and sum(min_widths) + _GAP * (len(min_widths) - 1) > width:
        width = None  # lines that the terminal breaks read better than very narrow cells
    indices = list(range(len(columns))) if width is None else _kept(columns, min_widths, width)
    widths = [natural[index] for index in indices]
    if width is not None:
        widths = _shrunk(widths, [min_widths[index] for index in indices], width)
    lines = []
    for row in rows:
        cells = [_cell(row[index], size, columns[index]) for index, size in zip(indices, widths, strict=True)]
        for part in range(max(map(len, cells))):
            texts = [cell[part] if part < len(cell) else "" for cell in cells]
            lines.append((" " * _GAP).join(t.ljust(size) for t, size in zip(texts, widths, strict=True)).rstrip())
    return "\n".join(lines)


def sort_rows(objects: Iterable[Any], column: Column | None) -> list[Any]:
    """Return rows sorted by a column, which may be hidden; unknown values come last."""
    if column is None:
        return list(objects)
    key = column.key or column.get

    def rank(item: Any) -> tuple[bool, Any]:
        value = key(item)
        return value in (None, "", "-"), value if value is not None else ""

    return sorted(objects, key=rank)


def wrapped(text: str, width: int | None, indent: int) -> str:
    """Return a line wrapped at `width` with continuation lines at `indent`. Words, such as paths, stay whole."""
    if width is None or len(text) <= width:
        return text
    head, body = text[:indent], text[indent:]
    lines = _lines(body, max(_NARROWEST, width - indent))
    return f"\n{' ' * indent}".join([head + lines[0], *lines[1:]])


def _least(column: Column, natural: int, word: int, whole: bool) -> int:
    """Return the minimum width of a column; its longest word stays whole."""
    if column.wrap:
        return min(natural, max(_NARROWEST, word))
    return min(natural, max(column.cut, len(column.title))) if column.cut and not whole else natural


def _kept(columns: Sequence[Column], min_widths: Sequence[int], width: int) -> list[int]:
    """Return the indices of the columns to show."""
    indices = list(range(len(columns)))
    while sum(min_widths[index] + _GAP for index in indices) - _GAP > width:
        drops = [index for index in indices if columns[index].drop]
        if not drops:
            break
        indices.remove(max(drops, key=lambda index: (columns[index].drop, index)))
    return indices


def _shrunk(widths: list[int], min_widths: Sequence[int], width: int) -> list[int]:
    """Return widths that fit, shrinking the widest first, down to `min_widths`."""
    shrunk = list(widths)
    while sum(shrunk) + _GAP * (len(shrunk) - 1) > width:
        able = [index for index in range(len(shrunk)) if shrunk[index] > min_widths[index]]
        if not able:
            break
        shrunk[max(able, key=lambda index: shrunk[index])] -= 1
    return shrunk


def _cell(text: str, size: int, column: Column) -> list[str]:
    if len(text) <= size:
        return [text]
    return _lines(text, size) if column.wrap else [f"{text[: size - 1]}…"] if column.cut else [text]


def _lines(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
