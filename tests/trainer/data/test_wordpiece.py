"""WordPiece: the examples of the reference implementation's tests, and files that are no vocabulary."""

import io
from pathlib import Path

import numpy as np
import pytest

from trainer.data.tokenizer import identity, open_tokenizer
from trainer.data.wordpiece import WordPiece, words
from trainer.errors import FatalError

SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer(*pieces: str) -> WordPiece:
    return WordPiece("vocab.txt", "\n".join([*SPECIAL, *pieces]).encode())


def pieces(vocabulary: WordPiece, text: str) -> list[str]:
    return [piece for word in words(text, is_cased=False) for piece in vocabulary.pieces(word)]


# Of tokenization_test.py in google-research/bert.
@pytest.mark.parametrize(
    ("text", "is_cased", "expected"),
    [
        ("ah\u535a\u63a8zz", False, ["ah", "\u535a", "\u63a8", "zz"]),
        (" \tHeLLo!how  \n Are yoU?  ", False, ["hello", "!", "how", "are", "you", "?"]),
        ("H\u00e9llo", False, ["hello"]),
        (" \tHeLLo!how  \n Are yoU?  ", True, ["HeLLo", "!", "how", "Are", "yoU", "?"]),
        ("a\u0000b\u200bc\ufffd\u00a0d", True, ["abc", "d"]),  # control characters, and a space of another width
        ("$5, it's ^o^", True, ["$", "5", ",", "it", "'", "s", "^", "o", "^"]),
        ("\u00abyes\u00bb\u2014no", True, ["\u00ab", "yes", "\u00bb", "\u2014", "no"]),
    ],
)
def test_words_are_those_of_the_reference(text: str, is_cased: bool, expected: list[str]) -> None:
    assert words(text, is_cased=is_cased) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("unwanted running", ["un", "##want", "##ed", "runn", "##ing"]),
        ("unwantedX running", ["[UNK]", "runn", "##ing"]),
        ("UNwant\u00e9d,running", ["un", "##want", "##ed", ",", "runn", "##ing"]),
        ("w" * 101, ["[UNK]"]),
    ],
)
def test_pieces_are_those_of_the_reference(text: str, expected: list[str]) -> None:
    vocabulary = tokenizer("want", "##want", "##ed", "wa", "un", "runn", "##ing", ",", "w", "##w")
    assert pieces(vocabulary, text) == expected
    known = [*SPECIAL, "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]
    assert vocabulary.ids(text) == [known.index(piece) for piece in expected]


def test_a_vocabulary_with_capitals_keeps_them() -> None:
    assert tokenizer("the", "The").ids("The the") == [5, 4]
    assert tokenizer("the").ids("The the") == [4, 4]


def test_a_document_ends_with_a_separator(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "a"]) + "\n")
    vocabulary = open_tokenizer(str(tmp_path / "vocab.txt"))
    assert isinstance(vocabulary, WordPiece)
    assert (vocabulary.vocab, vocabulary.mask, vocabulary.dtype) == (5, 3, "uint16")
    assert np.frombuffer(io.BytesIO(vocabulary.encode(b"a b")).read(), "<u2").tolist() == [4, 0, 2]
    assert identity(str(tmp_path / "vocab.txt")).startswith("wordpiece:")


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x1c", "\x0c"])
def test_a_piece_that_unicode_takes_for_a_line_end_moves_no_other(separator: str) -> None:
    assert tokenizer("a", separator, "b").ids("a b") == [4, 6]
    assert tokenizer("a", separator, "b").vocab == 7


def test_a_vocabulary_may_have_line_ends_of_windows() -> None:
    assert WordPiece("vocab.txt", "\r\n".join([*SPECIAL, "a", ""]).encode()).ids("a") == [4]


def test_a_file_that_is_no_vocabulary_is_reported() -> None:
    with pytest.raises(FatalError, match=r"'notes.txt' is not a WordPiece vocabulary: it has no \[CLS\]"):
        WordPiece("notes.txt", b"[UNK]\nsome text")
