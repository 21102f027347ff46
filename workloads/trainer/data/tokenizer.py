"""Tokenizers: bytes, a SentencePiece model (BPE or unigram), or a WordPiece vocabulary (a file that ends in .txt).

Every document ends with an end token. `identity` names a tokenizer by the digest of its file, so that two machines can
check whether they have the same one without the package sentencepiece.
"""

import functools
import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

from trainer.data.sources import SEPARATOR
from trainer.data.wordpiece import WordPiece
from trainer.errors import FatalError, Problem, reason
from trainer.storage import open_place
from xpk_shared.storage.errors import Unreachable

BYTES = "bytes"
JPEG = "jpeg"  # in place of the identity of a tokenizer: documents are encoded images, each followed by its label
OBJECTS = "objects"  # the same; documents are encoded images with objects, as objects.py describes
CLICKS = "clicks:"  # the same, followed by the format of a click log
_KIND, _WORDPIECE = "sentencepiece", "wordpiece"
_VOCABULARY = ".txt"


class Tokenizer(Protocol):
    """Encoder of documents as token ids."""

    vocab: int  # upper bound (exclusive) of the ids
    dtype: str  # unsigned integer type of the ids

    def encode(self, text: bytes) -> bytes:
        """Return the ids of a UTF-8 document and the end token, as little-endian `dtype`."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids without end token; bytes that are not UTF-8 become U+FFFD, unknown ids nothing."""


class _Bytes:
    vocab, dtype = 256, "uint8"

    def encode(self, text: bytes) -> bytes:
        return text + SEPARATOR

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(number for number in ids if number < self.vocab).decode(errors="replace")


class _SentencePiece:
    def __init__(self, path: str, content: bytes) -> None:
        try:
            import sentencepiece  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError as error:
            message = f"data.tokenizer={path!r} requires sentencepiece, which is not installed"
            raise FatalError(Problem(message, "pip install 'xpk-multislice[tokenizer]'")) from error
        try:
            self._model: Any = sentencepiece.SentencePieceProcessor(model_proto=content)
        except Exception as error:  # the library raises errors of many types
            message = f"data.tokenizer={path!r} is not a SentencePiece model: {reason(error)}"
            raise FatalError(Problem(message, "Use a model trained with SentencePiece")) from error
        self.vocab, self._end = int(self._model.vocab_size()), int(self._model.eos_id())
        self.dtype = "uint16" if self.vocab <= 1 << 16 else "uint32"
        if self._end < 0:
            message = f"data.tokenizer={path!r} has no end-of-text token"
            raise FatalError(Problem(message, "Train it with --eos_id"))

    def encode(self, text: bytes) -> bytes:
        import numpy as np

        ids = [*self._model.encode(text.decode(), out_type=int), self._end]
        return np.array(ids, np.dtype(self.dtype).newbyteorder("<")).tobytes()

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._model.decode([int(number) for number in ids if number < self.vocab]))


def is_vocabulary(path: str) -> bool:
    """Return whether a tokenizer's file is a WordPiece vocabulary, by its name."""
    return path.endswith(_VOCABULARY)


def identity(path: str) -> str:
    """Return "bytes", or the kind and digest of a tokenizer's file. Raises FatalError if it cannot be read."""
    if path in ("", BYTES):
        return BYTES
    kind = _WORDPIECE if is_vocabulary(path) else _KIND
    return f"{kind}:{hashlib.sha256(_content(path)).hexdigest()[:16]}"


def open_tokenizer(path: str) -> Tokenizer:
    """Return the tokenizer of a SentencePiece model or WordPiece vocabulary in a file or bucket, or that of bytes.

    Raises FatalError if the file is invalid, or sentencepiece is not installed.
    """
    if is_vocabulary(path):
        return WordPiece(path, _content(path))
    return _Bytes() if path in ("", BYTES) else _SentencePiece(path, _content(path))


@functools.lru_cache(maxsize=2)
def _content(path: str) -> bytes:
    try:
        return open_place(path).read()
    except Unreachable:
        raise
    except OSError as error:
        message = f"data.tokenizer={path!r} cannot be read: {reason(error)}"
        raise FatalError(
            Problem(message, "Use a SentencePiece model or a vocab.txt, or omit data.tokenizer to use bytes")
        ) from error
