"""Preparation of a click log in Criteo's format: lines of a label, integers and categories, divided by tabs.

    1 <tab> 5 <tab> <tab> 110 ... <tab> 68fd1e64 <tab> 80e26c9b ...

Integers and categories may be missing. A category is a hexadecimal number; features with several ids in an example
divide them by commas. Files may be compressed (`.gz`).
"""

import itertools
import zlib
from collections.abc import Iterator
from typing import Any

from trainer.config import Model
from trainer.data.clicks import DTYPE, MAX_INTEGER, ClickFormat, click_format
from trainer.data.dataset import (
    Corpus,
    empty,
    open_source,
    refuse_prepared,
)
from trainer.data.prepare import FILE_TOKENS, Writer, find_corpus, write_corpus
from trainer.data.sources import fingerprint as fingerprint_of
from trainer.data.sources import text_files
from trainer.errors import FatalError, Problem
from xpk_shared.storage import Place

_GROUP = 1024  # examples that the index counts as one document, as it needs no end for each
_PART = 1 << 24  # bytes read at a time
_MAX_NUMBERED = 1 << 20  # rows of the largest table whose values are numbered as they appear


def prepare(
    source: str,
    out: Place,
    model: Model,
    click_ids: str = "numbered",
    suffixes: str = "",
    *,
    file_tokens: int = FILE_TOKENS,
    is_pinned: bool = False,
) -> Corpus:
    """Return the data set of the click log in the folder `source`; prepare it in `out` if it is missing or outdated.

    With `is_pinned`, one prepared earlier is used even if the source has changed since. Raises FatalError that names
    the file, line and cause of a line that is not valid.
    """
    folder = open_source(source)
    if isinstance(folder, Corpus):
        return folder
    refuse_prepared(folder)
    form = click_format(model)
    request: dict[str, Any] = {"source": str(folder), "format": form.identity, "click_ids": click_ids}
    request |= {"suffixes": suffixes, "file_tokens": file_tokens}
    fingerprint = fingerprint_of(folder, suffixes)
    corpus = find_corpus(out, request, None if is_pinned else fingerprint)
    if corpus is not None:
        return corpus
    lines = LineFormat(form, click_ids)

    def write(writer: Writer) -> dict[str, Any]:
        names = [entry.name for entry in text_files(folder, suffixes)]
        records = (
            lines.encode(line, f"{folder / name}, line {number:,}")
            for name in names
            for number, line in enumerate(_lines(folder / name), 1)
        )
        size = max(1, min(_GROUP, file_tokens // form.length))
        groups = iter(lambda: b"".join(itertools.islice(records, size)), b"")
        first = next(groups, None)
        if first is None:
            raise FatalError(empty(source, suffixes))
        for group in itertools.chain([first], groups):
            writer.add(group)
        return {"skipped": 0, "sources": names}

    return write_corpus(out, notes(form) | {"asked": request, "fingerprint": fingerprint}, file_tokens, write)


def notes(form: ClickFormat) -> dict[str, Any]:
    """Return the notes in the manifest of a prepared click log."""
    return {"dtype": DTYPE, "vocab": max(form.tables), "tokenizer": form.identity}


class LineFormat:
    """Format of the lines of a click log, with the ids of the categories that have appeared."""

    def __init__(self, form: ClickFormat, click_ids: str) -> None:
        self._form, self._is_exact = form, click_ids == "exact"
        self._numbers: list[dict[int, int]] = [{} for _ in form.tables]

    def encode(self, line: bytes, place: str) -> bytes:
        """Return the example of a line, which ends with a line end unless it is the last. Raises FatalError."""
        form, has_end = self._form, line.endswith(b"\n")
        columns = line.rstrip(b"\r\n").split(b"\t")
        expected = 1 + form.dense + len(form.tables)
        if len(columns) != expected:
            defect = f"has {len(columns)} columns" if has_end else f"is truncated after {len(columns)} columns"
            parts = f"a label, {form.dense} integers and {len(form.tables)} categories"
            raise _invalid(place, f"{defect}, expected {expected}: {parts}")
        if columns[0] not in (b"0", b"1"):
            raise _invalid(place, f"has label {_text(columns[0])}, expected 0 or 1")
        dense = [_integer(text, place, nth) for nth, text in enumerate(columns[1 : 1 + form.dense], 2)]
        ids = [self._ids(nth, text, place) for nth, text in enumerate(columns[1 + form.dense :])]
        return form.encode(int(columns[0]), dense, ids)

    def _ids(self, nth: int, text: bytes, place: str) -> list[int]:
        """Return the ids in the column of categorical feature `nth` (from 0)."""
        if not text:
            return [] if self._is_exact else [0]
        rows, hots, column = self._form.tables[nth], self._form.hots[nth], f"column {2 + self._form.dense + nth}"
        try:
            values = [int(word, 16) for word in text.split(b",")]
        except ValueError:
            raise _invalid(place, f"has {_text(text)} in {column}, expected a hexadecimal number or nothing") from None
        if len(values) > hots:
            raise _invalid(place, f"has {len(values)} ids in {column}, model.hots allows {hots}")
        if not self._is_exact:
            return [self._number(nth, value) for value in values]
        if outside := [value for value in values if not 0 <= value < rows]:
            raise _invalid(place, f"has id {outside[0]} in {column}, whose table has {rows} rows (model.tables)")
        return values

    def _number(self, nth: int, value: int) -> int:
        """Return the id of a category; 0 is that of a missing one."""
        rows, numbers = self._form.tables[nth], self._numbers[nth]
        known = numbers.get(value)
        if known is not None:
            return known
        if rows > _MAX_NUMBERED or len(numbers) >= rows - 1:
            return 1 + value % (rows - 1)
        numbers[value] = len(numbers) + 1
        return len(numbers)


def _integer(text: bytes, place: str, column: int) -> int:
    """Return an integer of a column; a missing or negative one is 0, as in MLPerf's reference."""
    if not text:
        return 0
    try:
        value = max(0, int(text))
    except ValueError:
        raise _invalid(place, f"has {_text(text)} in column {column}, expected an integer or nothing") from None
    if value > MAX_INTEGER:
        raise _invalid(place, f"has {value} in column {column}, expected at most {MAX_INTEGER}")
    return value


def _lines(file: Place) -> Iterator[bytes]:
    """Yield the lines of a file with their line ends, reading a part at a time."""
    tail = b""
    for content in _unpacked(file) if str(file).endswith(".gz") else _parts(file):
        *whole, tail = (tail + content).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if tail:
        yield tail


def _parts(file: Place) -> Iterator[bytes]:
    for start in range(0, file.entry().size, _PART):
        yield file.part(start, _PART)


def _unpacked(file: Place) -> Iterator[bytes]:
    """Yield the content of a gzip file. Raises FatalError if it is damaged."""
    unpacker = zlib.decompressobj(wbits=31)
    for part in _parts(file):
        try:
            yield unpacker.decompress(part)
            while unpacker.eof and unpacker.unused_data:  # a file of several streams
                part, unpacker = unpacker.unused_data, zlib.decompressobj(wbits=31)
                yield unpacker.decompress(part)
        except zlib.error as error:
            raise FatalError(Problem(f"{file} is not valid gzip: {error}", "Copy it here again")) from error
    if not unpacker.eof:
        raise FatalError(Problem(f"{file} is truncated: its gzip stream has no end", "Copy it here again"))


def _invalid(place: str, defect: str) -> FatalError:
    return FatalError(Problem(f"{place} {defect}", "Correct the line, or the settings of the model"))


def _text(text: bytes) -> str:
    return repr(text[:40].decode(errors="backslashreplace"))
