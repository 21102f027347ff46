"""Prepared data sets: files of tokens (or images) and a manifest, described in docs/data.md.

`tokens-<digest>.json` is the manifest, which `data.path` may name. Each file holds only little-endian unsigned
integers; its index, with the suffix `.idx`, holds a checksum of every block and the end of every document.
"""

import dataclasses
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from trainer.config import Config
from trainer.data import local_copies
from trainer.data.clicks import DTYPE, MAX_RANKED
from trainer.data.records import record
from trainer.data.sources import SEPARATOR, looks_like_text, source_place, source_suffixes, text_files
from trainer.data.tokenizer import BYTES, identity
from trainer.errors import FatalError, Problem, StorageError, reason
from trainer.former_names import SYNTHETIC
from trainer.storage import open_place
from xpk_shared.storage import Place
from xpk_shared.storage.errors import Unreachable

SYNTHETIC_CLASSES = 10
TOKEN_BYTES = {"uint8": 1, "uint16": 2, "uint32": 4}
BLOCK = 1 << 16  # bytes per checksum
_MAX_COUNT = 1 << 53
# Raised by a file that is missing or not a manifest; the last one by deep nesting.
MANIFEST_ERRORS = (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
COPY_AGAIN = "Copy it here again, or delete it with its manifest to prepare it again from the source"


@dataclasses.dataclass(frozen=True, slots=True)
class TokenFile:
    """A file of a data set."""

    name: str  # beside the manifest
    tokens: int
    digest: str  # first digits of its SHA-256
    documents: int
    index: str = ""  # first digits of its index's SHA-256; empty without an index


@dataclasses.dataclass(frozen=True, slots=True)
class Corpus:
    """A prepared data set."""

    path: str  # of the manifest
    tokens: int
    dtype: str
    vocab: int
    digest: str  # first digits of the SHA-256 of all files' concatenated contents
    documents: int
    skipped: int
    tokenizer: str  # as returned by `trainer.data.tokenizer.identity`
    files: tuple[TokenFile, ...]

    def place(self, name: str) -> Place:
        """Return the place of one of its files."""
        return open_place(f"{self.path.rpartition('/')[0] or '.'}/{name}")


@dataclasses.dataclass(frozen=True, slots=True)
class Index:
    """The index of a file: block checksums and document ends."""

    sums: tuple[int, ...]  # CRC-32 of every BLOCK bytes; the last block may be shorter
    ends: tuple[int, ...]  # ends of the documents, in tokens from the start of the file

    def pack(self) -> bytes:
        """Return the file format: 32 bits per checksum, then 64 bits per end, little-endian."""
        return struct.pack(f"<{len(self.sums)}I", *self.sums) + struct.pack(f"<{len(self.ends)}Q", *self.ends)


def block_sums(content: BinaryIO) -> tuple[int, ...]:
    """Return the block checksums of the rest of a file."""
    return tuple(zlib.crc32(block) for block in iter(lambda: content.read(BLOCK), b""))


def from_notes(path: str, notes: dict[str, Any]) -> Corpus:
    """Return the data set of a manifest. One without `files` has a single file of the same name, without an index.

    Raises one of MANIFEST_ERRORS if it is not a manifest.
    """
    if notes["dtype"] not in TOKEN_BYTES:
        raise ValueError(notes["dtype"])
    single = {"name": f"{Path(path).stem}.bin"} | {key: notes[key] for key in ("tokens", "digest", "documents")}
    files = tuple(TokenFile(**file) for file in notes.get("files") or [single])
    if sum(file.tokens for file in files) != notes["tokens"]:
        raise ValueError(notes["tokens"])
    known = {"path": path, "tokenizer": notes.get("tokenizer", BYTES), "files": files}
    corpus = Corpus(**{field: notes[field] for field in Corpus.__dataclass_fields__ if field not in known}, **known)
    _check_types(corpus)
    for file in files:
        _check_types(file)
    if any(b"/" in os.fsencode(file.name) or "\0" in file.name for file in files):
        raise ValueError("a file that is not beside the manifest")
    return corpus


def _check_types(part: Corpus | TokenFile) -> None:
    """Raise TypeError for a field of another type, ValueError for a number that counts nothing."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.type in (int, str) and type(value) is not field.type:
            raise TypeError(f"{field.name}: {value!r}")
        if field.type is int and not 0 <= value < _MAX_COUNT:
            raise ValueError(f"{field.name}: {value}")


def refuse_prepared(folder: Place) -> None:
    """Raise FatalError if a folder of text contains a prepared data set, whose manifest would count as text.

    The manifest is directly in the folder; one written by hand may have any name that its only file shares.
    """
    entries = {entry.name: entry for entry in folder.files()}
    for entry in sorted(entries.values(), key=lambda entry: entry.changed, reverse=True):
        stem = entry.name.removesuffix(".json")
        if stem == entry.name or not (stem.startswith("tokens-") or f"{stem}.bin" in entries):
            continue
        try:
            from_notes(entry.name, json.loads((folder / entry.name).read()))
        except MANIFEST_ERRORS:
            continue
        message = f"data.path={str(folder)!r} is the folder of a prepared data set"
        raise FatalError(Problem(message, f"Use its manifest: data.path={folder / entry.name}"))


def open_corpus(file: Place) -> Corpus:
    """Return the data set of a manifest, or of the manifest of a data file. Raises FatalError if invalid or damaged."""
    name = str(file)
    path = name if name.endswith(".json") else f"{name.removesuffix('.bin')}.json"
    try:
        notes: dict[str, Any] = json.loads(open_place(path).read())
        corpus = from_notes(path, notes)
    except MANIFEST_ERRORS:
        defect = "not a manifest" if path == name else f"a file without a readable manifest {path.rpartition('/')[2]}"
        raise FatalError(
            Problem(
                f"data.path={name!r} is {defect}",
                "Use a folder of text, or the path that `python -m trainer prepare SRC --out FOLDER` prints",
            )
        ) from None
    sizes = {entry.name: entry.size for entry in corpus.place("").files()}
    problems = []
    for part in corpus.files:
        needed = part.tokens * TOKEN_BYTES[corpus.dtype]
        if part.name not in sizes:
            problems.append(Problem(f"{str(corpus.place(part.name))!r} does not exist", COPY_AGAIN))
        elif sizes[part.name] != needed:
            message = f"{str(corpus.place(part.name))!r} has {sizes[part.name]:,} bytes but should have {needed:,}"
            problems.append(Problem(message, COPY_AGAIN))
    if problems:
        raise FatalError(*problems)
    return corpus


def local(corpus: Corpus, file: TokenFile) -> Path:
    """Return a file of the data set on this host's disk; a file in a bucket is copied once.

    Raises FatalError if the copy is damaged, StorageError if it does not fit.
    """
    place = corpus.place(file.name)
    try:
        return local_copies.complete_copy(place, file.digest)
    except (PermissionError, Unreachable):
        raise
    except OSError as error:
        raise StorageError(f"{place} cannot be copied to this host's disk: {reason(error)}") from error


def check_source(config: Config, batch: int) -> list[Problem]:
    """Return the problems of `data.path`, reading as little as possible (the beginnings of files)."""
    if not config.data.path:
        return [unset()]
    if config.data.path == SYNTHETIC:
        return _check_synthetic(config)
    try:
        source = source_place(config.data.path)
        if source.is_file():
            return _unfit(config, open_corpus(source), batch)
        if config.model.family == "resnet":
            return [_no_images(config)]
        if config.model.family == "dlrm":  # its lines are checked when it is prepared
            return [] if source.is_folder() else [missing(config.data.path)]
        return _check_folder(config, source, batch) if source.is_folder() else [missing(config.data.path)]
    except FatalError as error:
        return list(error.problems)
    except OSError as error:
        return [Problem(f"data.path={config.data.path!r} cannot be read: {reason(error)}", "Use a readable path")]


def check_corpus(config: Config, corpus: Corpus, records: int, batch: int) -> None:
    """Raise FatalError if there are fewer records than a batch, or tokens outside the model's vocabulary."""
    problems = _check_synthetic(config) if config.data.path == SYNTHETIC else []
    problems += _unfit(config, corpus, batch)
    held_out = eval_records(config, records)
    if record(config.model).clicks and held_out > MAX_RANKED:
        message = f"{held_out:,} examples are held out for evaluation, but at most {MAX_RANKED:,} can be ranked"
        problems.append(Problem(message, "Use a lower data.eval_fraction"))
    trained = records - held_out
    if not problems and trained < max(batch, config.data.shards):
        needed = max(batch, config.data.shards)
        message = f"data.path={config.data.path!r} has {trained:,} examples to train on, but one batch needs {needed:,}"
        problems.append(Problem(message, "Add text, or lower data.global_batch or model.seq_len"))
    if problems:
        raise FatalError(*problems)


def eval_records(config: Config, records: int) -> int:
    """Return the number of records held out for evaluation, the last ones of the data set."""
    return int(records * config.data.eval_fraction)


def unset() -> Problem:
    """Return the problem of an unset data.path."""
    hint = "Use --set data.path=PATH with a folder of text or the manifest of a prepared data set"
    return Problem("data.path is not set", hint)


def missing(path: str) -> Problem:
    """Return the problem of a path that does not exist."""
    return Problem(
        f"data.path={path!r} does not exist here", "Use a folder, or gs://BUCKET/FOLDER, that every host can read"
    )


def empty(path: str, suffixes: str, skipped: int = 0) -> Problem:
    """Return the problem of a folder without text."""
    kind = f" with suffix {suffixes}" if suffixes else ""
    binary = f" ({skipped} binary or unreadable files skipped)" if skipped else ""
    return Problem(f"data.path={path!r} has no text files{kind}{binary}", "Use a folder that contains text files")


def _check_folder(config: Config, source: Place, batch: int) -> list[Problem]:
    """Check the size in bytes; process 0 checks the number of tokens, which may be smaller, when it prepares them."""
    refuse_prepared(source)
    needed, tokens, skipped = _needed_tokens(config, batch), 0, 0
    suffixes = source_suffixes(config.data.path, config.data.suffixes)
    identity(config.data.tokenizer)
    for entry in text_files(source, suffixes):
        if not entry.size or not looks_like_text(source / entry.name):
            skipped += 1
            continue
        tokens += entry.size + len(SEPARATOR)
        if tokens >= needed:
            return []
        if 0 < config.data.max_bytes <= tokens:
            break
    if not tokens:
        return [empty(config.data.path, suffixes, skipped)]
    return [_small(config.data.path, tokens, needed)]


def _needed_tokens(config: Config, batch: int) -> int:
    """Return the fewest tokens that leave one whole batch to train on; packed examples may need any number."""
    example = record(config.model)
    if config.model.packed:
        return 1
    return int(batch * example.stride / (1 - config.data.eval_fraction)) + example.length


def _check_synthetic(config: Config) -> list[Problem]:
    if config.model.family == "dlrm":
        return []
    if config.model.family != "resnet":
        return [Problem(f"data.path={SYNTHETIC} is a set of images", "Use model.family=resnet, or a folder of text")]
    if config.model.classes < SYNTHETIC_CLASSES:
        message = f"data.path={SYNTHETIC} has {SYNTHETIC_CLASSES} classes, but model.classes is {config.model.classes}"
        return [Problem(message, f"Use --set model.classes={SYNTHETIC_CLASSES} or more")]
    return []


def _unfit(config: Config, corpus: Corpus, batch: int) -> list[Problem]:
    """Return the problems of a data set with this model."""
    needed, problems = _needed_tokens(config, batch), []
    if (form := record(config.model).clicks) is not None:
        if corpus.tokenizer not in (form.identity, BYTES) or corpus.dtype != DTYPE or corpus.tokens % form.length:
            message = f"data.path={config.data.path!r} has no examples of the format {form.identity}"
            hint = "Use the model.dense_features, model.tables and model.hots of its preparation, or prepare it again"
            problems.append(Problem(message, hint))
        elif corpus.tokens < needed:
            problems.append(_small(config.data.path, corpus.tokens, needed))
        return problems
    if config.model.family == "resnet" and corpus.tokens % record(config.model).stride:
        problems.append(_no_images(config))
    tokenizer = identity(config.data.tokenizer) if config.data.tokenizer else corpus.tokenizer
    if tokenizer != corpus.tokenizer:
        message = f"{corpus.path!r} was prepared with tokenizer {corpus.tokenizer}, but data.tokenizer is {tokenizer}"
        problems.append(Problem(message, "Use the tokenizer that it was prepared with, or prepare it again"))
    if config.model.packed and not all(file.index for file in corpus.files):
        message = f"model.packed requires the ends of documents, which {corpus.path!r} does not have"
        problems.append(Problem(message, "Prepare it again, or use --set model.packed=false"))
    if corpus.tokens < needed:
        problems.append(_small(config.data.path, corpus.tokens, needed))
    # BERT's last token is the mask token; of bytes, 255 is free, because UTF-8 never contains it.
    vocab = corpus.vocab + (config.model.family == "bert" and corpus.tokenizer != BYTES)
    if vocab > config.model.vocab:
        masked = " plus the mask token" if vocab > corpus.vocab else ""
        message = (
            f"{config.data.path!r} has a vocabulary of {corpus.vocab}{masked}, but model.vocab is {config.model.vocab}"
        )
        problems.append(Problem(message, f"Use --set model.vocab={vocab} or more"))
    return problems


def _no_images(config: Config) -> Problem:
    size = f"{config.model.image} x {config.model.image}"
    message = f"data.path={config.data.path!r} is not a file of images of {size} pixels"
    return Problem(message, f"Use prepared images (`xpk docs models`), another model.image, or data.path={SYNTHETIC}")


def _small(path: str, tokens: int, needed: int) -> Problem:
    message = f"data.path={path!r} has {tokens:,} tokens, but one batch needs {needed:,}"
    return Problem(message, "Add text, or lower data.global_batch or model.seq_len")
