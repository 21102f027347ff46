"""Prepared data sets: files, tokenizers, and errors for damage and for other models."""

import errno
import hashlib
import io
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from tests.http_server import FailingBucket, http_server, url_of
from tests.trainer.small import arguments, run_alone, start
from trainer import config
from trainer.config import Model
from trainer.data import checks, dataset, prepare
from trainer.data import reader as reading
from trainer.data.dataset import BLOCK, Corpus
from trainer.errors import FatalError
from trainer.main import main
from trainer.storage import open_place
from xpk_shared.storage.disk import Disk

ROOT = Path(__file__).parents[3]
SMALL = Model(seq_len=16)
BIG = 40_000  # bytes of a document, so that a file has several blocks


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for nth, letter in enumerate("abcdef"):
        (folder / f"{nth}.txt").write_text((letter + "\n") * (BIG // 2))
    return folder


@pytest.fixture
def made(texts: Path, tmp_path: Path) -> Corpus:
    """A data set of three files with two documents each."""
    return prepare.prepare(str(texts), open_place(tmp_path), file_tokens=BIG + 2)


def trained(folder: Path, vocab: int) -> str:
    """Train a tokenizer on the documentation; return its file."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))[:40_000]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()), model_writer=model, vocab_size=vocab, model_type="bpe",
        minloglevel=2,
    )  # fmt: skip
    file = folder / f"{vocab}.model"
    file.write_bytes(model.getvalue())
    return str(file)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trained(tmp_path_factory.mktemp("tokenizer"), 300)


def reader(made: Corpus, model: Model = SMALL, max_open: int = 0) -> reading.Reader:
    return reading.Reader(made, model, reading.counts(made, model), max_open=max_open)


def test_a_data_set_of_several_files_splits_no_document_and_is_reused(made: Corpus, texts: Path) -> None:
    assert [(file.tokens, file.documents) for file in made.files] == [(2 * BIG + 2, 2)] * 3
    content = b"".join(made.place(file.name).read() for file in made.files)
    assert content == b"".join(path.read_bytes() + b"\0" for path in sorted(texts.iterdir()))
    assert hashlib.sha256(content).hexdigest()[:16] == made.digest
    folder = open_place(Path(made.path).parent)
    assert prepare.prepare(str(texts), folder, file_tokens=BIG + 2) == made
    assert len(prepare.prepare(str(texts), folder).files) == 1


def test_only_the_records_of_all_files_are_read(made: Corpus) -> None:
    counts, read = reading.counts(made, SMALL), reader(made)
    assert sum(counts) == 3 * counts[0]
    (row,) = read(np.array([counts[0]]))
    assert row.tolist() == list(b"c\n" * 8 + b"c")
    assert read.bytes < BLOCK + 1000  # a block, and an index
    (last,) = read(np.array([sum(counts) - 1]))
    assert set(last.tolist()) <= set(b"f\n\0")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[BLOCK + 10] ^= 1
    file.write_bytes(content)


def test_a_flipped_byte_is_located(made: Corpus) -> None:
    file = Path(made.path).parent / made.files[1].name
    flip(file)
    read, count = reader(made), reading.counts(made, SMALL)[1]
    read(np.array([count, count + 1]))  # undamaged data can be read
    with pytest.raises(FatalError, match=rf"{file}' is damaged: bytes 65,536 to 80,002 do not match"):
        read(np.array([count + BLOCK // 16]))


def test_a_handwritten_file_is_verified_completely(made: Corpus) -> None:
    manifest = Path(made.path)
    notes = json.loads(manifest.read_text())
    for file in notes["files"]:
        file["index"] = ""
    manifest.write_text(json.dumps(notes))
    flip(manifest.parent / made.files[0].name)
    read = reader(dataset.open_corpus(open_place(manifest)))
    with pytest.raises(FatalError, match=rf"{made.files[0].name}' is damaged: its SHA-256 does not begin with"):
        read(np.array([0]))


@pytest.fixture
def many(texts: Path, tmp_path: Path) -> Corpus:
    """A data set of six files with one document each."""
    return prepare.prepare(str(texts), open_place(tmp_path), file_tokens=1)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_open_files_stay_within_the_process_limit(many: Corpus) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    counts, before = reading.counts(many, SMALL), open_files()
    read = reader(many, max_open=2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 4, hard))
    try:
        read.fetch([range(sum(counts))])
        for _ in range(2):
            rows = read(np.array([nth * counts[0] for nth in range(6)]))
            assert bytes(rows[:, 0].astype(np.uint8)) == b"abcdef"
            assert open_files() == before + 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_at_most_half_of_the_process_limit_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((64, 32), (2**20, 4096), (resource.RLIM_INFINITY, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda what, soft=soft: (soft, soft))
        assert reading.max_open_files() == most


def test_a_replaced_file_is_verified_again(many: Corpus) -> None:
    file, count = Path(many.path).parent / many.files[0].name, reading.counts(many, SMALL)[0]
    read = reader(many, max_open=1)
    whole = read.bytes
    read(np.array([0, count, 0]))
    assert read.bytes - whole < 2 * BIG + 3000  # verified data is not read completely again
    read(np.array([count]))
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(b"?" + content[1:])
    with pytest.raises(FatalError, match=rf"{file}' is damaged: bytes 0 to 40,001 do not match"):
        read(np.array([0]))
    read(np.array([count]))
    file.unlink()
    with pytest.raises(FatalError, match=rf"{file}' does not exist"):
        read(np.array([0]))


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def cut_while_open(read: reading.Reader, file: Path) -> None:
    read(np.array([0]))
    truncated(file)
    read(np.array([reading.counts(read._data, SMALL)[0] - 1]))


def test_a_file_truncated_while_it_is_read_is_named(made: Corpus) -> None:
    with pytest.raises(FatalError, match=f"{made.files[0].name}' has 79,997 bytes but should have 80,002"):
        cut_while_open(reader(made), Path(made.path).parent / made.files[0].name)


@pytest.mark.parametrize(
    ("harm", "which", "says"),
    [
        (truncated, "", "has 79,997 bytes but should have 80,002"),
        (Path.unlink, "", "does not exist"),
        (Path.unlink, ".idx", "does not exist"),
        (truncated, ".idx", "is damaged: its SHA-256"),
    ],
)
def test_problems_are_reported_before_training(
    harm: Callable[[Path], None], which: str, says: str, made: Corpus
) -> None:
    name = made.files[2].name + which
    harm(Path(made.path).parent / name)
    with pytest.raises(FatalError, match=rf"{name}' {says}"):
        reading.counts(dataset.open_corpus(open_place(made.path)), Model(seq_len=16, packed=True))


def test_the_folder_of_a_prepared_data_set_is_not_text(made: Corpus, tmp_path: Path) -> None:
    says = f"is the folder of a prepared data set. Use its manifest: data.path={made.path}"
    with pytest.raises(FatalError) as error:
        prepare.prepare(str(tmp_path), open_place(tmp_path / "out"))
    assert says in str(error.value.problems[0])
    (problem,) = checks.check_source(config.load("tiny", [f"data.path={tmp_path}"]), 1)
    assert says in str(problem)


def test_a_handwritten_data_set_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "images.bin").write_bytes(bytes(9))
    notes = {"dtype": "uint8", "vocab": 256, "tokens": 9, "documents": 1, "skipped": 0, "digest": "0"}
    (tmp_path / "images.json").write_text(json.dumps(notes))
    with pytest.raises(FatalError, match="is the folder of a prepared data set"):
        prepare.prepare(str(tmp_path), open_place(tmp_path / "out"))


@pytest.mark.parametrize("name", ["tokens-list.json", "images.json"])
def test_json_files_are_text(name: str, tmp_path: Path) -> None:
    (tmp_path / "images.bin").write_bytes(bytes(9))
    (tmp_path / name).write_text('{"dtype": "uint8"}')
    assert prepare.prepare(str(tmp_path), open_place(tmp_path / "out")).documents == 1


def test_a_tokenizers_tokens_are_those_of_the_text(tokenizer: str, tmp_path: Path) -> None:
    output = ["Slices train together.\n", "A host is killed, and the run goes on.\n"]
    source, out = tmp_path / "source", open_place(tmp_path / "out")
    source.mkdir()
    for nth, text in enumerate(output):
        (source / f"{nth}.txt").write_text(text)
    made = prepare.prepare(str(source), out, tokenizer=tokenizer)
    assert (made.dtype, made.vocab, made.documents) == ("uint16", 300, 2)
    model = sentencepiece.SentencePieceProcessor(model_file=tokenizer)
    ids = np.frombuffer(made.place(made.files[0].name).read(), "<u2")
    cut = int(np.flatnonzero(ids == model.eos_id())[0]) + 1
    assert [model.decode(part.tolist()) for part in (ids[:cut], ids[cut:])] == [text.strip() for text in output]
    assert prepare.prepare(str(source), out).digest != made.digest
    assert prepare.prepare(str(source), out, tokenizer=tokenizer) == made


def problems(made: Corpus, *settings: str) -> str:
    asked = config.load("tiny", [f"data.path={made.path}", "model.seq_len=16", *settings])
    return "\n".join(map(str, checks.check_source(asked, 8)))


def test_data_of_another_tokenizer_is_rejected(texts: Path, tokenizer: str, tmp_path: Path) -> None:
    made = prepare.prepare(str(texts), open_place(tmp_path), tokenizer=tokenizer)
    assert "has a vocabulary of 300, but model.vocab is 256" in problems(made)
    assert problems(made, "model.vocab=320") == problems(made, "model.vocab=300") == ""
    assert "Use --set model.vocab=301 or more" in problems(made, "model.vocab=300", "model.family=bert")
    assert problems(made, "model.vocab=320", f"data.tokenizer={tokenizer}") == ""
    other = trained(tmp_path, 310)
    output = problems(made, "model.vocab=320", f"data.tokenizer={other}")
    assert f"was prepared with tokenizer {made.tokenizer}, but data.tokenizer is sentencepiece:" in output
    assert "was prepared with tokenizer" in problems(made, "model.vocab=320", "data.tokenizer=bytes")


@pytest.mark.parametrize(
    ("content", "says"), [(b"no model", "is not a SentencePiece model"), (None, "cannot be read: No such file")]
)
def test_an_invalid_tokenizer_is_reported(content: bytes | None, says: str, texts: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.model"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(FatalError, match=says):
        prepare.prepare(str(texts), open_place(tmp_path / "out"), tokenizer=str(file))


class FailingDisk(Disk):
    """A folder with a file that fails to be read in this way."""

    error = errno.EIO

    def __truediv__(self, name: str) -> Disk:
        return type(self)(self.path / name)

    def read(self, limit: int | None = None) -> bytes:
        """Fail for one file."""
        if self.path.name == "b.txt":
            raise OSError(self.error, os.strerror(self.error), str(self.path))
        return super().read(limit)


class ForbiddenDisk(FailingDisk):
    """The same, of which the user may not read one."""

    error = errno.EACCES


def test_a_file_that_a_disk_fails_to_read_is_not_left_out_for_good(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(name)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        list(prepare.source_documents(FailingDisk(tmp_path), ""))
    assert [text for _, text in prepare.source_documents(ForbiddenDisk(tmp_path), "")] == [b"a", None, b"c"]


@pytest.mark.parametrize(
    ("source", "out", "hint"),
    [
        ("gs://bucket/text", "{tmp}/out", "Use another SRC, or try again later"),
        ("{tmp}", "gs://bucket/out", "Use another --out"),
    ],
)
def test_a_failure_to_read_or_write_has_the_hint_for_it(
    source: str,
    out: str,
    hint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "a.txt").write_text("text")
    for name in ("TENSORSTORE_GCS_HTTP_URL", "GOOGLE_AUTH_TOKEN_FOR_TESTING"):  # which `open_place` sets
        monkeypatch.setenv(name, "emulator")
    with http_server(FailingBucket) as server, pytest.raises(SystemExit) as end:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url_of(server))
        main(["prepare", source.format(tmp=tmp_path), "--out", out.format(tmp=tmp_path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 42 and "the server failed" in line and line.endswith(f". {hint}")


def test_prepare_prints_the_manifest_and_a_summary(tokenizer: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Slices train together.\n" * 100)
    words = ("prepare", str(tmp_path), "--out", str(tmp_path / "out"), "--tokenizer", tokenizer)
    ran = run_alone(*words)
    assert ran.returncode == 0, ran.stderr
    made = dataset.open_corpus(open_place(ran.stdout.strip()))
    assert ran.stderr.splitlines() == [
        f"{made.tokens:,} tokens of 1 documents",
        f"tokenizer {made.tokenizer}, vocabulary 300",
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hosts_with_their_own_shards_train_like_one(tokenizer: str, tmp_path: Path) -> None:
    sources = str(ROOT / "workloads" / "trainer")
    made = prepare.prepare(sources, open_place(tmp_path / "data"), tokenizer=tokenizer, file_tokens=20_000)
    settings = [
        *(f"data.path={made.path}", "model.vocab=320", "model.packed=true", "data.shards=2", "data.shuffle=files"),
        *("run.steps=4", "run.eval_every=0", "run.log_every=1", "checkpoint.every=4", "data.eval_fraction=0"),
    ]
    several = start(tmp_path / "several", settings)
    assert several.exit_codes(600) == [0, 0], several.logs()
    out = f"run.output_dir={tmp_path / 'one'}"
    ran = run_alone(*arguments([*settings, out]), JAX_NUM_CPU_DEVICES="4", MEGASCALE_NUM_SLICES="")
    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()
    alone = {record["step"]: record["loss"] for record in map(json.loads, lines)}
    losses = {step: float.fromhex(loss) for step, loss in several.losses().items()}
    assert losses == pytest.approx(alone, abs=1e-5)
    assert "documents fill" in ran.stdout
    read = [several.events(n)[-1]["data_bytes"] for n in (0, 1)]
    assert min(read) > 0 and sum(read) < 2 * made.tokens  # blocks of one file each, of several
