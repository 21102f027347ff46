"""Preparation of a data set from a folder of text, done once and reused while the source is unchanged.

Each file exists completely or not at all, and so does the manifest, which is written last. Every document ends with an
end token. For bytes it is zero; a file that contains a zero byte counts as binary and is skipped.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainer.data import local_copies
from trainer.data.dataset import (
    MANIFEST_ERRORS,
    TOKEN_BYTES,
    Corpus,
    Index,
    TokenFile,
    block_sums,
    empty,
    from_notes,
    open_corpus,
    open_source,
    refuse_prepared,
)
from trainer.data.sources import document, source_suffixes, text_files
from trainer.data.sources import fingerprint as fingerprint_of
from trainer.data.tokenizer import BYTES, Tokenizer, identity, open_tokenizer
from trainer.errors import FatalError
from xpk_shared.storage import Place

FILE_TOKENS = 1 << 28  # size at which a new file is started


class Writer:
    """Writer of documents into files of a data set, each of at least `file_tokens`: no document is split."""

    def __init__(self, out: Place, dtype: str, file_tokens: int) -> None:
        self.out, self.width, self.file_tokens = out, TOKEN_BYTES[dtype], file_tokens
        self.longest = 0  # of the pairs in the open file
        self.digest, self.files = hashlib.sha256(), list[TokenFile]()
        self._ends, self._open = list[int](), contextlib.ExitStack()
        self._file: BinaryIO | None = None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, *documents: bytes) -> None:
        """Append documents of little-endian tokens, each of which ends with the end token, to the same file."""
        if self._file is None:
            draft = self._open.enter_context(local_copies.draft(self.out / "tokens"))
            self._file = self._open.enter_context(draft.open("wb"))
        for tokens in documents:
            self._file.write(tokens)
            self.digest.update(tokens)
            self._ends.append((self._ends[-1] if self._ends else 0) + len(tokens) // self.width)
        if self._ends[-1] >= self.file_tokens:
            self.finish()

    def finish(self) -> None:
        """Move the open file and its index into place, if a file is open."""
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        draft = Path(self._file.name)
        with draft.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()[:16]
            content.seek(0)
            index = Index(block_sums(content), tuple(self._ends)).pack()
        name, sums = f"tokens-{digest}.bin", hashlib.sha256(index).hexdigest()[:16]
        self.files.append(TokenFile(name, self._ends[-1], digest, len(self._ends), sums, self.longest))
        (self.out / f"{name}.idx").write(index)
        local_copies.adopt(self.out / name, draft)
        self._open.close()
        self._file, self._ends = None, []


def prepare(
    source: str,
    out: Place,
    suffixes: str = "",
    max_bytes: int = 0,
    *,
    tokenizer: str = BYTES,
    file_tokens: int = FILE_TOKENS,
    is_pinned: bool = False,
) -> Corpus:
    """Return the data set of `source` in the folder `out`; prepare it if it is missing or outdated.

    With `is_pinned`, one prepared earlier from the same source is used even if the source has changed since, because a
    run must continue with the data that it started with. Raises FatalError if there is no text.
    """
    folder = open_source(source)
    if isinstance(folder, Corpus):
        return folder
    refuse_prepared(folder)
    suffixes = source_suffixes(source, suffixes)
    request: dict[str, Any] = {"source": str(folder), "suffixes": suffixes, "max_bytes": max_bytes}
    request |= {} if identity(tokenizer) == BYTES else {"tokenizer": identity(tokenizer)}
    corpus, notes = find_prepared(out, folder, request, suffixes, file_tokens=file_tokens, is_pinned=is_pinned)
    if corpus is not None:
        return corpus
    tokens = open_tokenizer(tokenizer)
    notes |= {"dtype": tokens.dtype, "vocab": tokens.vocab, "tokenizer": identity(tokenizer)}

    def write(writer: Writer) -> dict[str, Any]:
        text_notes = _write_texts(folder, writer, tokens, suffixes, max_bytes)
        if not text_notes["sources"]:
            raise FatalError(empty(str(folder), suffixes, text_notes["skipped"]))
        return text_notes

    return write_corpus(out, notes, file_tokens, write)


def find_prepared(
    out: Place,
    folder: Place,
    request: dict[str, Any],
    suffixes: str = "",
    *,
    file_tokens: int = FILE_TOKENS,
    is_pinned: bool = False,
) -> tuple[Corpus | None, dict[str, Any]]:
    """Return the data set in `out` of a folder, None if it has to be prepared; and the first notes of a new one.

    `request` has what determines the data set beside the files; `is_pinned` as for `prepare`.
    """
    request = request | ({} if file_tokens == FILE_TOKENS else {"file_tokens": file_tokens})
    fingerprint = "" if is_pinned else fingerprint_of(folder, suffixes)
    corpus = find_corpus(out, request, None if is_pinned else fingerprint)
    if corpus is not None:
        return corpus, {}
    return None, {"asked": request, "fingerprint": fingerprint or fingerprint_of(folder, suffixes)}


def find_corpus(out: Place, request: dict[str, Any], fingerprint: str | None) -> Corpus | None:
    """Return the newest data set in `out` for this request, and this source unless `fingerprint` is None."""
    entries = {entry.name: entry for entry in out.files() if entry.name.startswith("tokens-")}
    newest_first = sorted(entries.values(), key=lambda entry: entry.changed, reverse=True)
    for name in (entry.name for entry in newest_first if entry.name.endswith(".json")):
        try:
            notes = json.loads((out / name).read())
            files = from_notes(name, notes).files
        except MANIFEST_ERRORS:
            continue  # damaged: it is prepared again
        same = notes.get("asked") == request and fingerprint in (None, notes.get("fingerprint"))
        if same and all(file.name in entries for file in files):
            return open_corpus(out / name)
    return None


def write_corpus(
    out: Place, notes: dict[str, Any], file_tokens: int, write: Callable[[Writer], dict[str, Any]]
) -> Corpus:
    """Write a data set to `out` from the documents that `write` adds, with these notes and those it returns."""
    with Writer(out, notes["dtype"], file_tokens) as writer:
        notes = notes | write(writer)
        writer.finish()
    digest, files = writer.digest.hexdigest()[:16], writer.files
    notes |= {"digest": digest, "tokens": sum(file.tokens for file in files)}
    notes |= {"documents": sum(file.documents for file in files)}
    notes["files"] = [
        {key: value for key, value in dataclasses.asdict(file).items() if key != "longest" or value} for file in files
    ]
    manifest = out / f"tokens-{digest}.json"
    manifest.write(json.dumps(notes, indent=1).encode())
    return open_corpus(manifest)


def _write_texts(folder: Place, writer: Writer, tokenizer: Tokenizer, suffixes: str, max_bytes: int) -> dict[str, Any]:
    """Add documents until there are `max_bytes` (0: no limit); return notes on them."""
    sources, skipped, size = [], 0, 0
    for name, text in source_documents(folder, suffixes):
        if text is None:
            skipped += 1
            continue
        writer.add(tokenizer.encode(text))
        size += len(text) + 1
        sources.append(name)
        if 0 < max_bytes <= size:
            break
    return {"skipped": skipped, "sources": sources}


def source_documents(folder: Place, suffixes: str) -> Iterator[tuple[str, bytes | None]]:
    """Yield the name and text of each file; None in place of text that is none or may not be read.

    Raises OSError for other failures: the file may be readable later.
    """
    entries, read_entries = itertools.tee(text_files(folder, suffixes))
    unreadable = (FileNotFoundError,) if folder.path is None else (FileNotFoundError, PermissionError)
    for entry, content in zip(entries, folder.read_each(read_entries, unreadable), strict=True):
        yield entry.name, document(content)
