"""Preparation of pairs of segments for BERT's next-sentence prediction.

Sources have a sentence in each line and an empty line between documents, as MLPerf's Wikipedia does. A pair is
    [CLS] first segment [SEP] second segment [SEP] padding
and then three numbers: the tokens up to the first [SEP], those up to the second, and 1 if the second segment follows
the first in its document, or 0 if it is of another one. Half of the pairs follow. The algorithm is that of
create_pretraining_data.py of google-research/bert, except that masks are chosen on the chips (models/bert.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainer.data.dataset import (
    Corpus,
    empty,
    open_source,
    refuse_prepared,
    vocabulary_problem,
)
from trainer.data.prepare import FILE_TOKENS, Writer, find_prepared, source_documents, write_corpus
from trainer.data.records import SEGMENT_NUMBERS
from trainer.data.sources import source_suffixes
from trainer.data.tokenizer import identity, open_tokenizer
from trainer.data.wordpiece import WordPiece
from trainer.errors import FatalError, Problem
from xpk_shared.storage import Place

_SHORT = 0.1  # fraction of the pairs that are shorter than they may be
_POOL_TOKENS = 1 << 24  # documents are paired with others among so many tokens, which are in memory
_SPECIAL = 3  # [CLS] and both [SEP]
_DRAWS = 0x5E47  # distinguishes these random numbers from others with the same seed
Sentence = list[int]
Document = list[Sentence]


class Pair(NamedTuple):
    """Tokens of two segments, and whether the second follows the first."""

    first: list[int]
    second: list[int]
    is_next: bool


def prepare(
    source: str,
    out: Place,
    seq_len: int,
    tokenizer: str,
    suffixes: str = "",
    max_bytes: int = 0,
    *,
    file_tokens: int = FILE_TOKENS,
    is_pinned: bool = False,
) -> Corpus:
    """Return the data set of pairs of `seq_len` tokens of `source`; prepare it in the folder `out` if necessary.

    Parameters as for text (prepare.py); `tokenizer` is a WordPiece vocabulary. Raises FatalError if it is not, and if
    there are fewer than two documents.
    """
    folder = open_source(source)
    if isinstance(folder, Corpus):
        return folder
    refuse_prepared(folder)
    suffixes, pieces = source_suffixes(source, suffixes), open_tokenizer(tokenizer)
    if not isinstance(pieces, WordPiece):
        raise FatalError(vocabulary_problem())
    request: dict[str, Any] = {"source": str(folder), "suffixes": suffixes, "max_bytes": max_bytes, "segments": seq_len}
    request |= {"tokenizer": identity(tokenizer)}
    corpus, notes = find_prepared(out, folder, request, suffixes, file_tokens=file_tokens, is_pinned=is_pinned)
    if corpus is not None:
        return corpus
    notes |= {"dtype": pieces.dtype, "vocab": pieces.vocab, "tokenizer": identity(tokenizer)}
    notes |= {"segments": seq_len, "mask_token": pieces.mask}

    def write(writer: Writer) -> dict[str, Any]:
        return _write(folder, writer, pieces, seq_len, suffixes, max_bytes)

    return write_corpus(out, notes, file_tokens, write)


def pairs(documents: Sequence[Document], room: int, random: np.random.Generator) -> Iterator[Pair]:
    """Yield pairs of at most `room` tokens from at least two documents."""
    for number, sentences in enumerate(documents):
        target = room if random.random() >= _SHORT else int(random.integers(2, room + 1))
        chunk, at = Document(), 0
        while at < len(sentences):
            chunk.append(sentences[at])
            if at == len(sentences) - 1 or sum(map(len, chunk)) >= target:
                split = 1 if len(chunk) == 1 else int(random.integers(1, len(chunk)))
                first = _joined(chunk[:split])
                is_next = len(chunk) > 1 and bool(random.random() < 0.5)
                second = _joined(chunk[split:])
                if not is_next:
                    at -= len(chunk) - split  # the sentences that are not used come again
                    second = _other(documents, number, target - len(first), random)
                yield Pair(*_shortened(first, second, room, random), is_next)
                chunk = []
            at += 1


def _other(documents: Sequence[Document], number: int, length: int, random: np.random.Generator) -> list[int]:
    """Return about `length` tokens from a random sentence of another document on."""
    sentences = documents[(number + int(random.integers(1, len(documents)))) % len(documents)]
    tokens = list[int]()
    for sentence in sentences[int(random.integers(len(sentences))) :]:
        tokens += sentence
        if len(tokens) >= length:
            break
    return tokens


def _shortened(
    first: list[int], second: list[int], room: int, random: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Remove tokens of the longer segment, from its beginning or end, until both fit."""
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        longer.pop(0 if random.random() < 0.5 else -1)
    return first, second


def _write(
    folder: Place, writer: Writer, pieces: WordPiece, seq_len: int, suffixes: str, max_bytes: int
) -> dict[str, Any]:
    """Add the pairs of all documents, pool by pool; return notes on them."""
    random, skipped, count = np.random.default_rng(_DRAWS), 0, 0
    dtype = np.dtype(pieces.dtype).newbyteorder("<")

    def documents() -> Iterator[Document]:
        nonlocal skipped
        size = 0
        for _, text in source_documents(folder, suffixes):
            if text is None:
                skipped += 1
                continue
            yield from _documents(text.decode(), pieces)
            size += len(text) + 1
            if 0 < max_bytes <= size:
                return

    for pool in _pools(documents()):
        count += len(pool)
        if len(pool) < 2:
            message = f"data.path={str(folder)!r} has fewer than two documents, but pairs require another one"
            raise FatalError(Problem(message, "Put an empty line between documents, and a sentence in each line"))
        for first, second, is_next in pairs(pool, seq_len - _SPECIAL, random):
            tokens = [pieces.start, *first, pieces.separator, *second, pieces.separator]
            padding = [0] * (seq_len - len(tokens))
            numbers = [*tokens, *padding, len(first) + 2, len(tokens), int(is_next)]
            assert len(numbers) == seq_len + SEGMENT_NUMBERS
            writer.add(np.array(numbers, dtype).tobytes())
    if not count:
        raise FatalError(empty(str(folder), suffixes, skipped))
    return {"skipped": skipped}


def _documents(text: str, pieces: WordPiece) -> Iterator[Document]:
    """Yield the documents of a file as token ids, without those that have none."""
    document = Document()
    for line in [*text.splitlines(), ""]:
        if line.strip():
            document.append(pieces.ids(line))
        elif document := [sentence for sentence in document if sentence]:
            yield document
            document = []


def _pools(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Yield documents in lists of about `_POOL_TOKENS` tokens, and at least two documents if there are so many."""
    pool, size = list[Document](), 0
    for document in documents:
        if size >= _POOL_TOKENS and len(pool) > 2:
            yield pool[:-1]
            pool, size = pool[-1:], 0  # so that the last pool has two
        pool.append(document)
        size += sum(map(len, document))
    if pool:
        yield pool


def _joined(sentences: Document) -> list[int]:
    return [token for sentence in sentences for token in sentence]
