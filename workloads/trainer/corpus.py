"""Turn a folder of text into one flat file of byte tokens, once.

`tokens-<digest>.bin` holds one little-endian unsigned integer a token (uint8 for bytes), nothing else;
`tokens-<digest>.json` beside it says what it was made from. Documents are separated by a zero byte:
a file that contains one is binary and skipped, so zero never occurs inside a document.
"""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainer.config import Config, Model
from trainer.errors import FatalError, Problem, StorageError, Unreachable, reason
from trainer.folder import making
from trainer.places import Place, open_place
from trainer.records import record
from trainer.sources import SEPARATOR, document, looks_like_text, source_place, text_files, wanted_suffixes
from trainer.sources import fingerprint as fingerprint_of

DRAWN, DRAWN_KINDS = "drawn", 10  # what `data.path` calls the images of drawn.py, and how many kinds they have
TOKEN_BYTES = {"uint8": 1, "uint16": 2, "uint32": 4}


@dataclasses.dataclass(frozen=True, slots=True)
class Corpus:
    """A prepared token file."""

    path: str
    tokens: int
    dtype: str
    vocab: int
    digest: str
    documents: int
    skipped: int

    def records(self, model: Model) -> int:
        """Examples of `model` in it; of a decoder's, each token is predicted exactly once."""
        return record(model).count(self.tokens)


def check_source(config: Config, batch: int) -> list[Problem]:
    """Return what is wrong with `data.path`, reading as little as it takes to know (the beginnings of files)."""
    if not config.data.path:
        return [_unset()]
    if config.data.path == DRAWN:
        return _check_drawn(config)
    try:
        source = source_place(config.data.path)
        if source.is_file():
            return _too_small(config, open_corpus(source), batch)
        if config.model.family == "resnet":
            return [_no_images(config)]
        return _check_folder(config, source, batch) if source.is_folder() else [_missing(config.data.path)]
    except FatalError as error:
        return list(error.problems)
    except OSError as error:
        return [Problem(f"data.path={config.data.path!r} cannot be read: {reason(error)}", "Give one that can")]


def _check_folder(config: Config, source: Place, batch: int) -> list[Problem]:
    needed, found, skipped = _needed_tokens(config, batch), 0, 0
    suffixes = wanted_suffixes(config.data.path, config.data.suffixes)
    for entry in text_files(source, suffixes):
        if not entry.size or not looks_like_text(source / entry.name):
            skipped += 1
            continue
        found += entry.size + len(SEPARATOR)
        if found >= needed:
            return []
        if 0 < config.data.max_bytes <= found:
            break
    if not found:
        return [_empty(config.data.path, suffixes, skipped)]
    return [_small(config.data.path, found, needed)]


def prepare(source: str, out: Place, suffixes: str = "", max_bytes: int = 0, *, pinned: bool = False) -> Corpus:
    """Return the token file of `source` in the folder `out`, making it unless it is there and unchanged.

    With `pinned` a file made earlier from the same source is used even if the source has changed since:
    a run that has begun must go on with the data it began with. Raises FatalError if there is no text.
    """
    if not source:
        raise FatalError(_unset())
    folder = source_place(source)
    if folder.is_file():
        return open_corpus(folder)
    if not folder.is_folder():
        raise FatalError(_missing(source))
    suffixes = wanted_suffixes(source, suffixes)
    asked = {"source": str(folder), "suffixes": suffixes, "max_bytes": max_bytes}
    fingerprint = "" if pinned else fingerprint_of(folder, suffixes)
    made = find(out, asked, None if pinned else fingerprint)
    if made is not None:
        return made

    def write(content: BinaryIO) -> dict[str, Any]:
        notes = _write_tokens(folder, content, suffixes, max_bytes)
        if not notes["documents"]:
            raise FatalError(_empty(str(folder), suffixes, notes["skipped"]))
        return notes

    return keep(out, asked, fingerprint or fingerprint_of(folder, suffixes), write)


def find(out: Place, asked: dict[str, Any], fingerprint: str | None) -> Corpus | None:
    """Return the newest file in `out` that was made as `asked`, from sources like these unless that is None."""
    there = {entry.name: entry for entry in out.files() if entry.name.startswith("tokens-")}
    newest_first = sorted(there.values(), key=lambda entry: entry.changed, reverse=True)
    for name in (entry.name for entry in newest_first if entry.name.endswith(".json")):
        notes = _notes(out / name)
        same = notes.get("asked") == asked and fingerprint in (None, notes.get("fingerprint"))
        tokens = name.removesuffix(".json") + ".bin"
        if same and tokens in there:
            return open_corpus(out / tokens)
    return None


def keep(out: Place, asked: dict[str, Any], fingerprint: str, write: Callable[[BinaryIO], dict[str, Any]]) -> Corpus:
    """Make a file of bytes in `out` with `write`, which returns what it wrote; it is there whole or not at all."""
    with making((out / "tokens").workshop()) as file:
        with file.open("wb") as content:
            notes = write(content)
            content.flush()
            os.fsync(content.fileno())
        tokens = out / f"tokens-{notes['digest']}.bin"
        tokens.adopt(file)
    notes |= {"dtype": "uint8", "vocab": 256, "asked": asked, "fingerprint": fingerprint}
    (out / f"tokens-{notes['digest']}.json").write(json.dumps(notes, indent=1).encode())
    return open_corpus(tokens)


def open_corpus(file: Place) -> Corpus:
    """Return a prepared token file's description. Raises FatalError if it is not one or is damaged."""
    stem = str(file).rpartition(".bin")[0] or str(file)
    try:
        notes: dict[str, Any] = json.loads(open_place(f"{stem}.json").read())
        corpus = Corpus(path=str(file), **{k: notes[k] for k in Corpus.__dataclass_fields__ if k != "path"})
        width = TOKEN_BYTES[corpus.dtype]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        beside = stem.rpartition("/")[2]
        raise FatalError(
            Problem(
                f"data.path={str(file)!r} is a file without a readable {beside}.json beside it",
                "Give a folder of text, or make a token file: python -m trainer prepare SRC --out FOLDER",
            )
        ) from None
    size = file.entry().size
    if size != corpus.tokens * width:
        message = f"{str(file)!r} has {size:,} bytes but should have {corpus.tokens * width:,}"
        raise FatalError(Problem(message, "Delete it and its .json; it is made again from the source"))
    return corpus


def local(corpus: Corpus) -> Path:
    """Return the token file on this host's disk; one in a bucket is copied there once.

    Raises FatalError if it is damaged, StorageError if it does not fit.
    """
    try:
        return open_place(corpus.path).local(corpus.digest)
    except (PermissionError, Unreachable):
        raise
    except OSError as error:
        raise StorageError(f"{corpus.path} cannot be copied to this host's disk: {reason(error)}") from error


def check_corpus(config: Config, corpus: Corpus, batch: int) -> None:
    """Raise FatalError if the corpus is too small for one batch or has tokens the model cannot take."""
    problems = _check_drawn(config) if config.data.path == DRAWN else []
    problems += _too_small(config, corpus, batch)
    if problems:
        raise FatalError(*problems)


def eval_records(config: Config, records: int) -> int:
    """Records held out for evaluation; the last ones of the file."""
    return int(records * config.data.eval_fraction)


def _notes(file: Place) -> dict[str, Any]:
    """Return what stands beside a token file, or nothing if that is damaged: the token file is made again."""
    try:
        notes = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return {}
    whole = isinstance(notes, dict) and {*notes, "path"} >= set(Corpus.__dataclass_fields__)
    return notes if whole else {}


def _write_tokens(folder: Place, content: BinaryIO, suffixes: str, max_bytes: int) -> dict[str, Any]:
    """Write the documents one after the other, until there are `max_bytes` (0: no limit); return what they are."""
    digest, documents, skipped, size = hashlib.sha256(), [], 0, 0
    for name, text in _documents(folder, suffixes):
        if text is None:
            skipped += 1
            continue
        piece = text + SEPARATOR
        content.write(piece)
        digest.update(piece)
        size += len(piece)
        documents.append(name)
        if 0 < max_bytes <= size:
            break
    return {
        "tokens": size, "digest": digest.hexdigest()[:16], "documents": len(documents), "skipped": skipped,
        "sources": documents,
    }  # fmt: skip


def _documents(folder: Place, suffixes: str) -> Iterator[tuple[str, bytes | None]]:
    entries, asked_for = itertools.tee(text_files(folder, suffixes))
    for entry, content in zip(entries, folder.read_each(asked_for), strict=True):
        yield entry.name, document(content)


def _needed_tokens(config: Config, batch: int) -> int:
    """Fewest tokens that leave one whole batch after the held-out part."""
    example = record(config.model)
    return int(batch * example.stride / (1 - config.data.eval_fraction)) + example.length


def _check_drawn(config: Config) -> list[Problem]:
    if config.model.family != "resnet":
        return [Problem(f"data.path={DRAWN} is a set of images", "Use model.family=resnet, or a folder of text")]
    if config.model.classes < DRAWN_KINDS:
        message = f"data.path={DRAWN} has {DRAWN_KINDS} kinds of images, the model only {config.model.classes}"
        return [Problem(message, f"Use --set model.classes={DRAWN_KINDS} or more")]
    return []


def _too_small(config: Config, corpus: Corpus, batch: int) -> list[Problem]:
    needed, problems = _needed_tokens(config, batch), []
    if config.model.family == "resnet" and corpus.tokens % record(config.model).stride:
        problems.append(_no_images(config))
    if corpus.tokens < needed:
        problems.append(_small(config.data.path, corpus.tokens, needed))
    if corpus.vocab > config.model.vocab:
        message = f"{config.data.path!r} has a vocabulary of {corpus.vocab}, the model only {config.model.vocab}"
        problems.append(Problem(message, f"Use --set model.vocab={corpus.vocab} or more"))
    return problems


def _unset() -> Problem:
    return Problem("data.path is not set", "Give a folder of text or a prepared file: --set data.path=FOLDER")


def _no_images(config: Config) -> Problem:
    size = f"{config.model.image} x {config.model.image}"
    message = f"data.path={config.data.path!r} is no file of images of {size} pixels"
    return Problem(message, f"Give a prepared one (docs/models.md), another model.image, or data.path={DRAWN}")


def _missing(path: str) -> Problem:
    return Problem(
        f"data.path={path!r} does not exist here", "Give a folder, or gs://BUCKET/FOLDER, that every host can read"
    )


def _small(path: str, found: int, needed: int) -> Problem:
    message = f"data.path={path!r} has {found:,} tokens, one batch needs {needed:,}"
    return Problem(message, "Add text, or lower data.global_batch or model.seq_len")


def _empty(path: str, suffixes: str, skipped: int = 0) -> Problem:
    kind = f" with suffix {suffixes}" if suffixes else ""
    binary = f" ({skipped} binary or unreadable files skipped)" if skipped else ""
    return Problem(f"data.path={path!r} has no text files{kind}{binary}", "Give a folder with text in it")
