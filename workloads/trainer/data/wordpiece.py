"""WordPiece, the tokenizer of BERT: words and punctuation marks, each split into the longest pieces of a vocabulary.

The vocabulary is a file `vocab.txt` with a piece in each line, whose number is its id; pieces inside a word begin with
`##`. Text is normalized as by the reference implementation (google-research/bert, tokenization.py). A vocabulary
without capital letters is "uncased": text is lowercased and loses its accents.
"""

import unicodedata
from collections.abc import Iterator, Sequence

from trainer.errors import FatalError, Problem

_UNKNOWN, _START, _SEPARATOR, _MASK = "[UNK]", "[CLS]", "[SEP]", "[MASK]"
_MAX_LETTERS = 100  # longer words are unknown
_IDEOGRAPHS = (  # of Chinese, each a word of its own
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)),
    *((0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


class WordPiece:
    """Tokenizer of a vocabulary; see `tokenizer.Tokenizer`."""

    def __init__(self, path: str, content: bytes) -> None:
        """Read a vocabulary. Raises FatalError if it is not one."""
        # Not `splitlines`: a piece may be a character that it takes for a line end, such as U+2028.
        pieces = content.decode(errors="replace").removesuffix("\n").split("\n")
        self._pieces = [piece.strip() for piece in pieces]
        self._ids = {piece.strip(): number for number, piece in enumerate(pieces)}
        missing = [piece for piece in (_UNKNOWN, _START, _SEPARATOR, _MASK) if piece not in self._ids]
        if missing:
            message = f"data.tokenizer={path!r} is not a WordPiece vocabulary: it has no {missing[0]}"
            raise FatalError(Problem(message, "Use a vocab.txt of BERT, which has [UNK], [CLS], [SEP] and [MASK]"))
        self.vocab, self.dtype = len(pieces), "uint16" if len(pieces) <= 1 << 16 else "uint32"
        self.start, self.separator, self.mask = (self._ids[piece] for piece in (_START, _SEPARATOR, _MASK))
        self._is_cased = any(piece != piece.lower() for piece in self._ids if not piece.startswith("["))

    def encode(self, text: bytes) -> bytes:
        """Return the ids of a UTF-8 document and the separator, as little-endian `dtype`."""
        import numpy as np

        ids = [*self.ids(text.decode()), self.separator]
        return np.array(ids, np.dtype(self.dtype).newbyteorder("<")).tobytes()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, with a space between words; unknown ids are left out."""
        pieces = [self._pieces[number] for number in ids if 0 <= number < self.vocab]
        return " ".join(pieces).replace(" ##", "")

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return [self._ids[piece] for word in words(text, is_cased=self._is_cased) for piece in self.pieces(word)]

    def pieces(self, word: str) -> list[str]:
        """Return the pieces of a word: the longest that it begins with, and so on; [UNK] if there is none."""
        pieces, start = list[str](), 0
        if len(word) > _MAX_LETTERS:
            return [_UNKNOWN]
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self._ids), None)
            if end is None:
                return [_UNKNOWN]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces


def words(text: str, *, is_cased: bool) -> list[str]:
    """Return the words and punctuation marks of a text."""
    spaced = "".join(_cleaned(text)).split()
    if not is_cased:
        spaced = [_without_accents(word.lower()) for word in spaced]
    return [part for word in spaced for part in _split_punctuation(word)]


def _cleaned(text: str) -> Iterator[str]:
    """Yield characters without control characters, whitespace as spaces, and ideographs between spaces."""
    for letter in text:
        kind, code = unicodedata.category(letter), ord(letter)
        if letter in " \t\n\r" or kind == "Zs":
            yield " "
        elif code in (0, 0xFFFD) or kind.startswith("C"):
            continue
        elif any(first <= code <= last for first, last in _IDEOGRAPHS):
            yield f" {letter} "
        else:
            yield letter


def _without_accents(word: str) -> str:
    return "".join(letter for letter in unicodedata.normalize("NFD", word) if unicodedata.category(letter) != "Mn")


def _split_punctuation(word: str) -> Iterator[str]:
    part = ""
    for letter in word:
        if _is_punctuation(letter):
            yield from (part, letter) if part else (letter,)
            part = ""
        else:
            part += letter
    if part:
        yield part


def _is_punctuation(letter: str) -> bool:
    """Return whether a character is punctuation in Unicode, or one of ASCII that is neither letter, digit nor space."""
    return (letter.isascii() and letter.isprintable() and not letter.isalnum() and letter != " ") or (
        unicodedata.category(letter).startswith("P")
    )
