"""Pairs of sentences: prepared from text, read as records, in batches of similar length, and errors by line."""

import collections
import json
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.small import run_alone
from trainer import config, pair_lengths
from trainer.config import Model
from trainer.data import bucket_order, checks, prepare, synthetic_translations, translations
from trainer.data import reader as reading
from trainer.data.bucket_order import BucketOrder
from trainer.data.dataset import Corpus
from trainer.data.preparation import summary
from trainer.data.records import END, FIRST_TOKEN
from trainer.errors import FatalError
from trainer.parallel import layout
from trainer.storage import open_place

MODEL = Model(family="transformer", seq_len=32)
COUNT = 100  # pairs of 4 to 44 tokens


def sentence(number: int) -> str:
    return f"{number:03d}" + "x" * (number % 41)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two parallel files; a translation is the sentence in capitals and one letter longer."""
    folder = tmp_path_factory.mktemp("wmt")
    sentences = [sentence(number) for number in range(COUNT)]
    source, target = folder / "train.en", folder / "train.de"
    source.write_text("".join(f"{line}\n" for line in sentences))
    target.write_text("".join(f"{line.upper()}!\n" for line in sentences))
    return source, target


@pytest.fixture(scope="module")
def corpus(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return translations.prepare(str(files[0]), str(files[1]), open_place(tmp_path_factory.mktemp("out")))


def texts(row: np.ndarray) -> list[str]:
    """Return the two texts of a record, whose halves each have one END."""
    halves = np.split(row, 2)
    for half in halves:
        (end,) = np.flatnonzero(half == END)
        assert not half[end + 1 :].any()
    return ["".join(chr(number - FIRST_TOKEN) for number in half if number >= FIRST_TOKEN) for half in halves]


def test_every_pair_that_fits_is_a_record_of_its_sentence_and_translation(corpus: Corpus) -> None:
    assert [file.longest for file in corpus.files] == [8, 16, 24, 32, 48]
    counts = reading.counts(corpus, MODEL, 0.1)
    trained, held = counts[: len(counts) // 2], counts[len(counts) // 2 :]
    fits = [number for number in range(COUNT) if 3 + number % 41 + 2 <= 32]
    assert sum(counts) == len(fits) and sum(held) == len(fits) // 10
    assert trained[-1] == held[-1] == 0, "a file of longer pairs"
    assert len([count for count in held[:-1] if count]) > 1, "held-out pairs of several lengths"
    rows = reading.Reader(corpus, MODEL, counts)(np.arange(sum(counts)))
    assert sorted(texts(row)[0] for row in rows) == [sentence(number) for number in fits]
    for source, target in map(texts, rows):
        assert target == source.upper() + "!"


def test_a_tsv_file_gives_the_same_data(corpus: Corpus, files: tuple[Path, Path], tmp_path: Path) -> None:
    lines = zip(*(file.read_text().splitlines() for file in files), strict=True)
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("\r\n".join("\t".join(line) for line in lines))
    from_columns = translations.prepare(str(tsv), "", open_place(tmp_path))
    assert (from_columns.digest, from_columns.tokens) == (corpus.digest, corpus.tokens)
    assert translations.prepare(str(tsv), "", open_place(tmp_path)) == from_columns, "it is reused"


@pytest.mark.parametrize(("tokens", "is_kept"), [(5000, True), (6144, True), (6145, False)])
def test_the_longest_sentences_that_are_kept_are_those_that_are_said(
    tokens: int, is_kept: bool, tmp_path: Path
) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\n" + "x" * (tokens - 1) + "\tc\n")
    corpus = translations.prepare(str(tmp_path / "pairs.tsv"), "", open_place(tmp_path / "out"))
    assert (corpus.documents // 2, corpus.skipped) == ((2, 0) if is_kept else (1, 1))
    assert ("1 pairs of more than 6,144 tokens skipped" in summary(corpus, MODEL)) == (not is_kept)


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("a\nb\n \nd\n", "A\nB\nC\nD\n", "{source!r} line 3 has an empty sentence"),
        ("a\nb\n", "A\n\n", "{target!r} line 2 has an empty sentence"),
        ("a\nb\nc\n", "A\nB\n", "{source!r} and {target!r} must have the same number of lines, but have 3 and 2"),
        ("a\n", "A\nB\nC\n", "{source!r} and {target!r} must have the same number of lines, but have 1 and 3"),
        ("a\nb\n", b"A\n\xff\n", "{target!r} line 2 is not UTF-8: byte 1 is 0xff"),
    ],
)
def test_an_invalid_line_is_named(source: str, target: str | bytes, says: str, tmp_path: Path) -> None:
    names = {"source": str(tmp_path / "x.en"), "target": str(tmp_path / "x.de")}
    (tmp_path / "x.en").write_text(source)
    (tmp_path / "x.de").write_bytes(target.encode() if isinstance(target, str) else target)
    with pytest.raises(FatalError) as error:
        translations.prepare(names["source"], names["target"], open_place(tmp_path / "out"))
    assert str(error.value) == says.format(**names)
    assert not list((tmp_path / "out").glob("*.json"))


def test_a_command_reports_a_bad_column_in_one_line(tmp_path: Path) -> None:
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("a\tA\nb B\n")
    ran = run_alone("prepare", str(tsv), "--config", "gnmt-tiny", "--out", str(tmp_path))
    assert (ran.returncode, ran.stdout) == (42, "")
    assert ran.stderr == (
        f"error: '{tsv}' line 2 must have 2 columns, but has 1."
        " Write a sentence, a tab and its translation in each line\n"
    )


def test_a_token_beyond_the_table_is_named(corpus: Corpus) -> None:
    small = Model(family="gnmt", seq_len=32, vocab=100)
    read = reading.Reader(corpus, small, reading.counts(corpus, small))
    with pytest.raises(FatalError) as error:
        read(np.array([1]))
    (problem,) = error.value.problems
    assert "pair 1 of " in problem.message and "has token 120, model.vocab = 100 allows 0 to 97" in problem.message
    assert problem.hint.startswith("Use --set model.vocab=123 or more")


def test_pairs_and_text_are_not_confused(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text " * 1000)
    text = prepare.prepare(str(tmp_path), open_place(tmp_path / "out"))
    for settings, path, says in (
        (["model.family=transformer"], text.path, "has no pairs of sentences, which transformer requires"),
        (["model.family=gnmt"], str(tmp_path), "has no pairs of sentences, which gnmt requires"),
        ([], corpus.path, "has pairs of sentences, which decoder does not read"),
        (
            ["data.target=x"],
            str(tmp_path),
            "data.target requires a model that translates, but decoder reads running text",
        ),
        (["model.family=gnmt", "data.target=x"], "y", "data.path='y' does not exist here"),
    ):
        configuration = config.load("tiny", [*settings, f"data.path={path}"])
        assert says in checks.check_source(configuration, 8)[0].message


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model.seq_len=20", "model.seq_len = 20 is not a length of files of pairs. Use 16 or 24"),
        ("model.batch_lengths=8,x", "is not a list of lengths below model.seq_len"),
        ("model.batch_lengths=16", "is not a list of lengths below model.seq_len"),
        ("model.packed=true", "model.packed is not supported by gnmt"),
        ("mesh.stages=2", "mesh.stages is not supported by gnmt"),
        ("quant.matmuls=forward", "quant.matmuls is not supported by gnmt"),
        ("model.layers=1", "model.layers = 1 is too small for gnmt. Use 2 or more"),
    ],
)
def test_settings_that_pairs_do_not_support_are_refused(setting: str, says: str) -> None:
    configuration = config.load("tiny", ["model.family=gnmt", "model.seq_len=16", setting])
    assert any(says in str(problem) for problem in layout.range_problems(configuration))


def test_an_invalid_size_of_the_mesh_is_one_line() -> None:
    settings = config.load("transformer", ["mesh.tp=0"])
    (problem,) = layout.check(settings, layout.Chips(1, 1, 4))
    assert str(problem) == "error: mesh.tp = 0 is out of range. Use a value above 0"


def order(batch: int, counts: tuple[int, ...], *, shards: int = 1) -> BucketOrder:
    buckets = bucket_order.buckets((8, 16, 24, 32), counts, (16, 24, 32), batch)
    return BucketOrder(3, batch, sum(counts), shards, "records", counts, buckets)


def test_batches_have_pairs_of_one_bucket_and_small_buckets_are_merged() -> None:
    assert order(8, (16, 24, 40, 80)).buckets == ((16, 0, 40), (24, 40, 40), (32, 80, 80))
    assert order(8, (16, 24, 4, 80)).buckets == ((16, 0, 40), (32, 40, 84))
    assert order(8, (16, 24, 40, 4)).buckets == ((16, 0, 40), (32, 40, 44))
    sequence = order(8, (16, 24, 40, 80))
    for step in range(60):
        (used,) = [b for b in sequence.buckets if set(sequence.ids(step)) <= set(range(b.first, b.first + b.records))]
        assert used.length == sequence.length(step)
    turns = collections.Counter(sequence.length(step) for step in range(20))
    assert turns == {16: 5, 24: 5, 32: 10}, "as many batches as each bucket has"
    assert sorted(id_ for step in range(20) for id_ in sequence.ids(step)) == list(range(160)), "an epoch"
    assert [sequence.length(step) for step in range(20)] != sorted(sequence.length(step) for step in range(20))


def test_a_host_with_shards_reads_its_own_part_of_every_bucket() -> None:
    sequence = order(8, (16, 24, 40, 80), shards=2)
    own = [{id_ for ids in sequence.ranges_of(shard) for id_ in ids} for shard in (0, 1)]
    assert not own[0] & own[1]
    for step in range(40):
        first, second = np.split(sequence.ids(step), 2)
        assert set(first) <= own[0] and set(second) <= own[1]


def test_synthetic_translations_reverse_and_replace_words(tmp_path: Path) -> None:
    source, target = (text.decode().split() for text in synthetic_translations.pair(11))
    assert target == ["QWERTYUI"["abcdefgh".index(word)] for word in reversed(source)]
    synthetic = synthetic_translations.prepare(open_place(tmp_path), 2000)
    assert synthetic.documents == 2 * 100 and max(file.longest for file in synthetic.files) <= 16
    assert synthetic_translations.prepare(open_place(tmp_path), 2000) == synthetic
    manifest = json.loads(Path(synthetic.path).read_text())
    assert all(file["longest"] in pair_lengths.LENGTHS for file in manifest["files"])
