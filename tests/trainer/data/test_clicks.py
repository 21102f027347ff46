"""Click logs: preparation from Criteo's format, the synthetic log, and errors that name file, line and cause."""

import gzip
import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.small import run_alone
from trainer import config
from trainer.config import Model
from trainer.data import checks, click_logs, dataset, reader, synthetic_clicks
from trainer.data.clicks import click_format
from trainer.data.dataset import Corpus
from trainer.errors import FatalError
from trainer.storage import open_place

CRITEO = Model(family="dlrm", tables=",".join(["50"] * 26))
SMALL = Model(family="dlrm", dense_features=2, tables="10,20", hots="1,3")
LINES = (b"1\t3\t\tff\t1,2\n", b"0\t-2\t7\t\t\n", b"0\t0\t1\tff\t2,ff,3\n")


def log(folder: Path, *lines: bytes) -> Path:
    (folder / "log").mkdir()
    (folder / "log" / "day_0").write_bytes(b"".join(lines))
    return folder / "log"


def rows(corpus: Corpus, model: Model) -> list[list[int]]:
    counts = reader.counts(corpus, model)
    return [list(map(int, row)) for row in reader.Reader(corpus, model, counts)(np.arange(sum(counts)))]


def test_criteos_lines_become_records(tmp_path: Path) -> None:
    dense, categories = [b"%d" % n for n in range(13)], [b"%08x" % (7 * n) for n in range(26)]
    first, second = [b"1", *dense, *categories], [b"0", *[b""] * 13, *[b""] * 26]
    folder = log(tmp_path, b"\t".join(first) + b"\n", b"\t".join(second))
    records = rows(click_logs.prepare(str(folder), open_place(tmp_path / "out"), CRITEO), CRITEO)
    assert records[0] == [1, *range(13), *[1, 1] * 26]  # the first value of each category has id 1
    assert records[1] == [0, *[0] * 13, *[1, 0] * 26]  # 0 is the id of a missing one


def test_categories_are_numbered_as_they_appear_or_are_the_ids(tmp_path: Path) -> None:
    folder = log(tmp_path, *LINES)
    numbered = click_logs.prepare(str(folder), open_place(tmp_path / "numbered"), SMALL)
    assert rows(numbered, SMALL) == [
        [1, 3, 0, 1, 1, 2, 1, 2, 0],
        [0, 0, 7, 1, 0, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 3, 2, 3, 4],
    ]
    (folder / "day_0").write_bytes(b"1\t3\t\t9\ta,b\n0\t\t7\t\t\n")
    exact = click_logs.prepare(str(folder), open_place(tmp_path / "exact"), SMALL, "exact")
    assert rows(exact, SMALL) == [[1, 3, 0, 1, 9, 2, 10, 11, 0], [0, 0, 7, 0, 0, 0, 0, 0, 0]]


def test_values_beyond_a_numbered_table_share_ids(tmp_path: Path) -> None:
    lines = click_logs.LineFormat(click_format(Model(family="dlrm", dense_features=0, tables="4")), "numbered")
    ids = [int.from_bytes(lines.encode(b"0\t%x\n" % value, "here")[8:], "little") for value in (90, 80, 70, 60, 80)]
    assert ids == [1, 2, 3, 1 + 60 % 3, 2]


def test_a_prepared_click_log_is_reused_and_divided_into_files(tmp_path: Path) -> None:
    folder, out = log(tmp_path, *LINES), open_place(tmp_path / "out")
    corpus = click_logs.prepare(str(folder), out, SMALL, file_tokens=10)
    assert [file.documents for file in corpus.files] == [2, 1] and corpus.documents == 3
    assert click_logs.prepare(str(folder), out, SMALL, file_tokens=10) == corpus
    (folder / "day_1").write_bytes(LINES[0])
    assert click_logs.prepare(str(folder), out, SMALL, file_tokens=10, is_pinned=True) == corpus
    assert click_logs.prepare(str(folder), out, SMALL, file_tokens=10).documents == 4


def test_compressed_logs_are_read(tmp_path: Path) -> None:
    folder = log(tmp_path)
    (folder / "day_0").unlink()
    (folder / "day_0.gz").write_bytes(gzip.compress(LINES[0]) + gzip.compress(b"".join(LINES[1:])))
    assert len(rows(click_logs.prepare(str(folder), open_place(tmp_path / "out"), SMALL), SMALL)) == 3
    (folder / "day_1.gz").write_bytes(gzip.compress(b"".join(LINES))[:-9])
    with pytest.raises(FatalError, match=r"day_1\.gz is truncated: its gzip stream has no end"):
        click_logs.prepare(str(folder), open_place(tmp_path / "out"), SMALL)
    (folder / "day_1.gz").write_bytes(b"no gzip")
    with pytest.raises(FatalError, match=r"day_1\.gz is not valid gzip"):
        click_logs.prepare(str(folder), open_place(tmp_path / "out"), SMALL)


@pytest.mark.parametrize(
    ("line", "click_ids", "says"),
    [
        (b"1\t3\t4\tff\n", "numbered", "has 4 columns, expected 5: a label, 2 integers and 2 categories"),
        (b"1\t3\t4", "numbered", "is truncated after 3 columns, expected 5"),
        (b"2\t3\t4\tff\t1\n", "numbered", "has label '2', expected 0 or 1"),
        (b"\t3\t4\tff\t1\n", "numbered", "has label '', expected 0 or 1"),
        (b"1\t3\t4.5\tff\t1\n", "numbered", "has '4.5' in column 3, expected an integer or nothing"),
        (b"1\t3\t4\txyz\t1\n", "numbered", "has 'xyz' in column 4, expected a hexadecimal number or nothing"),
        (b"1\t3\t2147483648\tff\t1\n", "numbered", "has 2147483648 in column 3, expected at most 2147483647"),
        (b"1\t3\t4\tff\t1,2,3,4\n", "numbered", "has 4 ids in column 5, model.hots allows 3"),
        (b"1\t3\t4\ta\t1\n", "exact", "has id 10 in column 4, whose table has 10 rows (model.tables)"),
    ],
)
def test_a_bad_line_is_named_with_its_cause(line: bytes, click_ids: str, says: str, tmp_path: Path) -> None:
    folder = log(tmp_path, b"1\t3\t4\t9\t1\n", line)
    with pytest.raises(FatalError) as error:
        click_logs.prepare(str(folder), open_place(tmp_path / "out"), SMALL, click_ids)
    (problem,) = error.value.problems
    assert problem.message.startswith(f"{folder}/day_0, line 2 {says}")
    assert not list((tmp_path / "out").glob("*.json"))


def handwritten(folder: Path, records: Sequence[Sequence[int]]) -> Corpus:
    numbers = np.array(list(itertools.chain(*records)), "<u4")
    (folder / "tokens-a.bin").write_bytes(numbers.tobytes())
    digest = hashlib.sha256(numbers.tobytes()).hexdigest()[:16]
    notes = {"tokens": len(numbers), "dtype": "uint32", "vocab": 20, "digest": digest, "skipped": 0}
    (folder / "tokens-a.json").write_text(json.dumps(notes | {"documents": len(records)}))
    return dataset.open_corpus(open_place(folder / "tokens-a.json"))


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ([2, 0, 0, 1, 3, 0, 0, 0, 0], "label 2, expected 0 or 1"),
        ([1, 0, 2**31, 1, 3, 0, 0, 0, 0], "integer 2147483648 in dense feature 2, expected 0 to 2147483647"),
        ([1, 0, 0, 2, 3, 0, 0, 0, 0], "2 ids in categorical feature 1, model.hots allows 1"),
        ([1, 0, 0, 1, 10, 0, 0, 0, 0], "id 10 in categorical feature 1, whose table has 10 rows (model.tables)"),
        ([1, 0, 0, 1, 9, 3, 1, 2, 20], "id 20 in categorical feature 2, whose table has 20 rows (model.tables)"),
    ],
)
def test_a_bad_record_is_named_when_it_is_read(record: list[int], says: str, tmp_path: Path) -> None:
    corpus = handwritten(tmp_path, [[1, 0, 0, 1, 9, 3, 1, 2, 19], record])
    with pytest.raises(FatalError) as error:
        rows(corpus, SMALL)
    (problem,) = error.value.problems
    assert problem.message == f"example 1 of '{tmp_path}/tokens-a.bin' has {says}"


def test_data_of_another_format_is_rejected(tmp_path: Path) -> None:
    corpus = click_logs.prepare(str(log(tmp_path, *LINES)), open_place(tmp_path / "out"), SMALL)
    settings = ["model.dense_features=2", "model.hots=1,3", f"data.path={corpus.path}", "data.eval_fraction=0"]
    fits = config.load("dlrm-tiny", [*settings, "model.tables=10,20"])
    assert checks.check_source(fits, 2) == []
    (problem,) = checks.check_source(fits, 64)
    assert "one batch needs" in problem.message
    other = config.load("dlrm-tiny", [*settings, "model.tables=10,21"])
    assert "has no examples of the format clicks:2+10,21 x 1,3" in str(checks.check_source(other, 2)[0])
    assert "is not a file of images" in str(checks.check_source(config.load("resnet-tiny", settings[2:]), 2)[0])


def test_the_command_prepares_a_click_log(tmp_path: Path) -> None:
    folder = log(tmp_path, *LINES)
    words = ("--set", "model.dense_features=2", "--set", "model.tables=10,20", "--set", "model.hots=1,3")
    ran = run_alone("prepare", str(folder), "--out", str(tmp_path / "out"), "--config", "dlrm-tiny", *words)
    assert (ran.returncode, ran.stderr) == (0, "3 examples\n")
    assert dataset.open_corpus(open_place(ran.stdout.strip())).tokens == 3 * 9
    ran = run_alone("prepare", str(folder), "--out", str(tmp_path / "out"), "--config", "dlrm-tiny")
    assert ran.returncode == 42 and ran.stderr.startswith(f"error: {folder}/day_0, line 1 has 5 columns, expected 11")


def test_synthetic_clicks_have_a_known_best_auc(tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score

    model = config.load("dlrm-tiny").model
    form = click_format(model)
    corpus = synthetic_clicks.prepare(model, open_place(tmp_path), max_bytes=4 * form.length * 5000)
    assert corpus.tokens == 5000 * form.length and synthetic_clicks.prepare(model, open_place(tmp_path), 0) != corpus
    chunks = [synthetic_clicks.draw(form, chunk) for chunk in range(2)]
    records, odds = np.concatenate([r for r, _ in chunks]), np.concatenate([o for _, o in chunks])
    np.testing.assert_array_equal(rows(corpus, model), records[:5000])
    assert roc_auc_score(records[:, 0], odds) == pytest.approx(0.82, abs=0.01)
    assert np.mean(records[:, 0]) == pytest.approx(np.mean(1 / (1 + np.exp(-odds))), abs=0.01)
