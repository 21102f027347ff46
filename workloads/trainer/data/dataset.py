"""Prepared data sets: files of tokens, images or clicks and a manifest, described in docs/data.md.

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
from trainer.data.sources import source_place
from trainer.data.tokenizer import BYTES, CLICKS, JPEG, OBJECTS
from trainer.errors import FatalError, Problem, StorageError, reason
from trainer.storage import open_place
from xpk_shared.storage import Place
from xpk_shared.storage.errors import Unreachable

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
    longest: int = 0  # of translations: no sentence has more tokens; 0: data of another kind


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
    segments: int = 0  # tokens of each pair of segments (segment_pairs.py); 0: data of another kind
    mask_token: int = 0  # of the WordPiece vocabulary of segments; 0: none
    held_out: int = 0  # examples of its own evaluation split, the last ones; 0: data.eval_fraction decides
    categories: int = 0  # of the objects in its images; 0: data of another kind

    @property
    def has_photographs(self) -> bool:
        """True if its documents are encoded images, each followed by its label."""
        return self.tokenizer == JPEG

    @property
    def has_objects(self) -> bool:
        """True if its documents are encoded images with their annotations."""
        return self.tokenizer == OBJECTS

    @property
    def has_encoded_images(self) -> bool:
        """True if its documents are decoded when they are read."""
        return self.has_photographs or self.has_objects

    @property
    def has_clicks(self) -> bool:
        """True if it was prepared from a click log."""
        return self.tokenizer.startswith(CLICKS)

    @property
    def has_translations(self) -> bool:
        """True if its documents are sentences, each followed by its translation."""
        return bool(self.files) and all(file.longest for file in self.files)

    def pairs(self, longest: int) -> int:
        """Return the number of pairs whose sentences have at most `longest` tokens, which must be a length of files."""
        return sum(file.documents // 2 for file in self.files if file.longest <= longest)

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
    known |= {name: notes.get(name, 0) for name in ("segments", "mask_token", "held_out", "categories")}
    corpus = Corpus(**{field: notes[field] for field in Corpus.__dataclass_fields__ if field not in known}, **known)
    _check_types(corpus)
    if corpus.held_out > corpus.documents:
        raise ValueError(corpus.held_out)
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


def eval_records(config: Config, corpus: Corpus, records: int) -> int:
    """Return the number of records held out for evaluation, the last ones of the data set."""
    if corpus.has_translations and config.model.packed:  # pairs, which are not packed
        records = corpus.pairs(config.model.seq_len)
    return corpus.held_out or int(records * config.data.eval_fraction)


def unset() -> Problem:
    """Return the problem of an unset data.path."""
    hint = "Use --set data.path=PATH with a folder of text or the manifest of a prepared data set"
    return Problem("data.path is not set", hint)


def missing(path: str) -> Problem:
    """Return the problem of a path that does not exist."""
    return Problem(
        f"data.path={path!r} does not exist here", "Use a folder, or gs://BUCKET/FOLDER, that every host can read"
    )


def open_source(source: str) -> Place | Corpus:
    """Return the folder `source`, or the prepared data set that it names. Raises FatalError if it is neither."""
    if not source:
        raise FatalError(unset())
    place = source_place(source)
    if place.is_file():
        return open_corpus(place)
    if not place.is_folder():
        raise FatalError(missing(source))
    return place


def missing_files(*paths: str) -> list[Problem]:
    """Return the problems of paths that are not files; an empty path is none."""
    return [missing(path) for path in paths if path and not source_place(path).is_file()]


def empty(path: str, suffixes: str, skipped: int = 0) -> Problem:
    """Return the problem of a folder without text."""
    kind = f" with suffix {suffixes}" if suffixes else ""
    binary = f" ({skipped} binary or unreadable files skipped)" if skipped else ""
    return Problem(f"data.path={path!r} has no text files{kind}{binary}", "Use a folder that contains text files")


def vocabulary_problem() -> Problem:
    """Return the problem of segments without a WordPiece vocabulary."""
    message = "model.next_sentence requires the [CLS] and [SEP] of a WordPiece vocabulary"
    return Problem(message, "Use a vocab.txt of BERT: --set data.tokenizer=FILE, or --tokenizer FILE of prepare")
