"""Preparation of pairs of sentences: two parallel files with a sentence a line, as WMT has them, or one TSV file.

The files of the data set are divided by length (pair_lengths.py), so that a batch can take pairs of similar length. The
documents of a file are a sentence, its translation, the next sentence, and so on.
"""

import contextlib
import struct
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from trainer.data.dataset import TOKEN_BYTES, Corpus, missing_files, open_corpus
from trainer.data.prepare import FILE_TOKENS, Writer, find_corpus, write_corpus
from trainer.data.sources import is_translated_text
from trainer.data.tokenizer import BYTES, Tokenizer, identity, open_tokenizer
from trainer.errors import FatalError, Problem
from trainer.pair_lengths import LENGTHS, file_length
from trainer.storage import open_place
from xpk_shared.storage import Place

Pair = tuple[bytes, bytes]  # a sentence and its translation, as UTF-8
_PART = 1 << 24  # bytes read at a time
_SIZES = struct.Struct("<II")  # of the two sentences of a pair on the way to its file
_EDIT = "Edit the line, or remove it (from both files, if there are two)"


def prepare(
    source: str,
    target: str,
    out: Place,
    max_bytes: int = 0,
    *,
    tokenizer: str = BYTES,
    file_tokens: int = FILE_TOKENS,
    is_pinned: bool = False,
) -> Corpus:
    """Return the data set of pairs in the folder `out`; prepare it if it is missing or outdated.

    `source` is a file of sentences and `target` one of their translations, or `source` alone is a TSV file with both or
    a manifest.
    `is_pinned` as in `trainer.data.prepare.prepare`. Raises FatalError naming the file and the line of an invalid pair.
    """
    if not is_translated_text(source, target):
        return open_corpus(open_place(source))
    places = [open_place(path) for path in (source, target) if path]
    if problems := missing_files(source, target):
        raise FatalError(*problems)
    request: dict[str, Any] = {"pairs": [str(place) for place in places], "max_bytes": max_bytes}
    request |= {} if identity(tokenizer) == BYTES else {"tokenizer": identity(tokenizer)}
    request |= {} if file_tokens == FILE_TOKENS else {"file_tokens": file_tokens}
    entries = [place.entry() for place in places]
    fingerprint = " ".join(f"{entry.size}-{entry.changed}" for entry in entries)
    corpus = find_corpus(out, request, None if is_pinned else fingerprint)
    if corpus is not None:
        return corpus
    pairs = _parallel(*places) if target else _tsv(places[0])
    return write(out, request, fingerprint, _up_to(pairs, max_bytes), tokenizer, file_tokens)


def write(
    out: Place,
    request: dict[str, Any],
    fingerprint: str,
    pairs: Iterable[Pair],
    tokenizer: str = BYTES,
    file_tokens: int = FILE_TOKENS,
) -> Corpus:
    """Write a data set of these pairs. Pairs that are longer than any of LENGTHS are skipped."""
    tokens = open_tokenizer(tokenizer)
    notes = {"dtype": tokens.dtype, "vocab": tokens.vocab, "tokenizer": identity(tokenizer), "asked": request}

    def write_pairs(writer: Writer) -> dict[str, Any]:
        skipped = 0
        with contextlib.ExitStack() as open_files:
            by_length: dict[int, BinaryIO] = {}
            for source, target in _encoded(tokens, pairs):
                length = file_length(max(len(source), len(target)) // TOKEN_BYTES[tokens.dtype])
                if length is None:
                    skipped += 1
                    continue
                if length not in by_length:
                    by_length[length] = open_files.enter_context(tempfile.TemporaryFile())
                by_length[length].write(_SIZES.pack(len(source), len(target)) + source + target)
            for length in sorted(by_length):
                writer.longest = length
                for pair in _read_back(by_length[length]):
                    writer.add(*pair)
                writer.finish()
        if not by_length:
            message = f"there are no pairs of at most {LENGTHS[-1]:,} tokens ({skipped:,} are longer)"
            raise FatalError(Problem(message, "Use pairs of sentences, one a line"))
        return {"skipped": skipped}

    return write_corpus(out, notes | {"fingerprint": fingerprint}, file_tokens, write_pairs)


def _encoded(tokens: Tokenizer, pairs: Iterable[Pair]) -> Iterator[Pair]:
    return ((tokens.encode(source), tokens.encode(target)) for source, target in pairs)


def _read_back(file: BinaryIO) -> Iterator[Pair]:
    file.seek(0)
    while sizes := file.read(_SIZES.size):
        source, target = _SIZES.unpack(sizes)
        yield file.read(source), file.read(target)


def _up_to(pairs: Iterator[Pair], max_bytes: int) -> Iterator[Pair]:
    """Yield pairs until they have `max_bytes`; 0: all of them."""
    size = 0
    for pair in pairs:
        yield pair
        size += sum(map(len, pair))
        if 0 < max_bytes <= size:
            return


def _parallel(source: Place, target: Place) -> Iterator[Pair]:
    """Yield the pairs of two files. Raises FatalError for an invalid line, or if one file has more lines."""
    sources, targets = _lines(source), _lines(target)
    number = 0
    for number, line in enumerate(sources, 1):
        translation = next(targets, None)
        if translation is None:
            raise _unequal(source, number + sum(1 for _ in sources), target, number - 1)
        yield _sentence(source, number, line), _sentence(target, number, translation)
    if more := sum(1 for _ in targets):
        raise _unequal(source, number, target, number + more)


def _unequal(source: Place, source_lines: int, target: Place, target_lines: int) -> FatalError:
    counts = f"must have the same number of lines, but have {source_lines:,} and {target_lines:,}"
    message = f"{str(source)!r} and {str(target)!r} {counts}"
    return FatalError(Problem(message, "Use files whose lines are translations of each other"))


def _tsv(file: Place) -> Iterator[Pair]:
    """Yield the pairs of a TSV file. Raises FatalError for an invalid line."""
    for number, line in enumerate(_lines(file), 1):
        columns = line.split(b"\t")
        if len(columns) != 2:
            message = f"{str(file)!r} line {number:,} must have 2 columns, but has {len(columns)}"
            raise FatalError(Problem(message, "Write a sentence, a tab and its translation in each line"))
        yield _sentence(file, number, columns[0]), _sentence(file, number, columns[1])


def _sentence(file: Place, number: int, line: bytes) -> bytes:
    """Return a sentence without space around it. Raises FatalError if it is empty or not UTF-8."""
    try:
        sentence = line.decode().strip().encode()
    except UnicodeDecodeError as error:
        message = f"{str(file)!r} line {number:,} is not UTF-8: byte {error.start + 1} is 0x{line[error.start]:02x}"
        raise FatalError(Problem(message, _EDIT)) from None
    if not sentence:
        raise FatalError(Problem(f"{str(file)!r} line {number:,} has an empty sentence", _EDIT))
    return sentence


def _lines(file: Place) -> Iterator[bytes]:
    """Yield the lines of a file without their ends, reading a part of it at a time."""
    rest, start = b"", 0
    while content := file.part(start, _PART):
        start += len(content)
        *lines, rest = (rest + content).split(b"\n")
        yield from lines
    if rest:
        yield rest
