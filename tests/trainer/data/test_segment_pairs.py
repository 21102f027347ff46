"""Pairs of segments: their format, and that half of them follow each other."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from trainer import config
from trainer.data import checks, reader, segment_pairs
from trainer.data.dataset import Corpus
from trainer.errors import FatalError
from trainer.storage import open_place

T = 24
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"{letter}{number}" for letter in "abcdefgh" for number in range(60)]
SETTINGS = ("model.family=bert", "model.next_sentence=true", f"model.seq_len={T}", "model.mask_token=4")
VOCAB = f"model.vocab={len(SPECIAL) + len(WORDS)}"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A vocabulary in which each word has its document's letter and its position."""
    file = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    file.write_text("\n".join([*SPECIAL, *WORDS]))
    return str(file)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight documents of 60 words, in sentences of 1 to 8 words, in two files."""
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("source")
    for name, letters in (("1.txt", "abcd"), ("2.txt", "efgh")):
        documents = []
        for letter in letters:
            ends = [0, *np.cumsum(random.integers(1, 9, 40)).tolist()]
            said = [
                WORDS["abcdefgh".index(letter) * 60 :][a : min(b, 60)] for a, b in itertools.pairwise(ends) if a < 60
            ]
            documents.append("\n".join(" ".join(words) for words in said))
        (folder / name).write_text("\n\n".join(documents) + "\n")
    return folder


@pytest.fixture(scope="module")
def prepared(source: Path, vocabulary: str, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return segment_pairs.prepare(str(source), open_place(tmp_path_factory.mktemp("data")), T, vocabulary)


def rows(corpus: Corpus) -> list[list[int]]:
    model = config.load("bert-tiny", [*SETTINGS, VOCAB]).model
    counts = reader.counts(corpus, model)
    assert sum(counts) == corpus.documents
    return [list(map(int, row)) for row in reader.Reader(corpus, model, counts)(np.arange(sum(counts)))]


def test_records_are_two_segments_and_whether_the_second_follows(prepared: Corpus) -> None:
    follows = []
    for row in rows(prepared):
        tokens, (first, second, is_next) = row[:T], row[T:]
        assert tokens[0] == 2 and tokens[first - 1] == tokens[second - 1] == 3
        assert not any(tokens[second:]) and 2 < first < second <= T
        a, b = tokens[1 : first - 1], tokens[first : second - 1]
        assert a and b and min(a + b) >= len(SPECIAL)
        for segment in (a, b):
            assert segment == list(range(segment[0], segment[0] + len(segment))), "a piece of one document"
        same = (a[0] - len(SPECIAL)) // 60 == (b[0] - len(SPECIAL)) // 60
        assert same == bool(is_next)
        assert not is_next or b[0] > a[-1]
        follows.append(is_next)
    assert len(follows) > 30 and 0.25 < np.mean(follows) < 0.75
    assert max(row[T + 1] for row in rows(prepared)) == T


def test_every_sentence_is_in_a_first_segment_or_follows_one() -> None:
    documents = [[[100 * d + n] * 3 for n in range(30)] for d in range(5)]
    pairs = list(segment_pairs.pairs(documents, 21, np.random.default_rng(0)))
    tokens = {token for pair in pairs for token in (*pair.first, *(pair.second if pair.is_next else ()))}
    assert tokens == {sentence[0] for document in documents for sentence in document}
    assert max(len(pair.first) + len(pair.second) for pair in pairs) <= 21


def test_preparation_is_repeatable_and_reused(prepared: Corpus, source: Path, vocabulary: str, tmp_path: Path) -> None:
    again = segment_pairs.prepare(str(source), open_place(tmp_path), T, vocabulary)
    assert (again.digest, again.segments, again.mask_token) == (prepared.digest, T, 4)
    stamp = Path(again.path).stat().st_mtime_ns
    assert segment_pairs.prepare(str(source), open_place(tmp_path), T, vocabulary) == again
    assert Path(again.path).stat().st_mtime_ns == stamp


def problems(path: str | Path, *settings: str) -> str:
    configuration = config.load("bert-tiny", [*SETTINGS, VOCAB, f"data.path={path}", *settings])
    return "\n".join(map(str, checks.check_source(configuration, 8)))


def test_pairs_of_another_kind_are_rejected(prepared: Corpus, source: Path, vocabulary: str) -> None:
    assert problems(prepared.path) == problems(source, f"data.tokenizer={vocabulary}") == ""
    assert "has pairs of segments of 24 tokens, but the model trains on pairs of segments of 32" in problems(
        prepared.path, "model.seq_len=32"
    )
    assert "the model trains on running text" in problems(prepared.path, "model.next_sentence=false")
    assert "has mask token 4, but model.mask_token is 7. Use --set model.mask_token=4" in problems(
        prepared.path, "model.mask_token=7"
    )
    assert "requires the [CLS] and [SEP] of a WordPiece vocabulary" in problems(source)


def test_one_document_is_too_few(vocabulary: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.txt").write_text("a1 a2\na3\n")
    with pytest.raises(FatalError, match=re.escape("has fewer than two documents, but pairs require another one")):
        segment_pairs.prepare(str(tmp_path / "source"), open_place(tmp_path / "data"), T, vocabulary)
