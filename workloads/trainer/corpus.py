"""Turn a folder of text into one flat file of byte tokens, once.

`tokens-<digest>.bin` holds one little-endian unsigned integer a token (uint8 for bytes), nothing else;
`tokens-<digest>.json` beside it says what it was made from. Documents are separated by a zero byte:
a file that contains one is binary and skipped, so zero never occurs inside a document.
"""

import dataclasses
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from trainer.config import Config
from trainer.errors import FatalError, Problem
from trainer.sources import SEPARATOR, document, looks_like_text, source_folder, text_files, wanted_suffixes
from trainer.sources import fingerprint as fingerprint_of

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

    def records(self, seq_len: int) -> int:
        """Examples of `seq_len` tokens and their targets: each token is predicted exactly once."""
        return max(0, (self.tokens - 1) // seq_len)


def check_source(config: Config, batch: int) -> list[Problem]:
    """Return what is wrong with `data.path`, reading as little as it takes to know (the beginnings of files)."""
    if not config.data.path:
        return [_unset()]
    source = source_folder(config.data.path)
    if source.is_file():
        try:
            return _too_small(config, open_corpus(source), batch)
        except FatalError as error:
            return list(error.problems)
    if not source.is_dir():
        return [_missing(config.data.path)]
    needed, found, skipped = _needed_tokens(config, batch), 0, 0
    suffixes = wanted_suffixes(config.data.path, config.data.suffixes)
    for path in text_files(source, suffixes):
        if not looks_like_text(path):
            skipped += 1
            continue
        found += path.stat().st_size + len(SEPARATOR)
        if found >= needed:
            return []
        if 0 < config.data.max_bytes <= found:
            break
    if not found:
        return [_empty(config.data.path, suffixes, skipped)]
    return [_small(config.data.path, found, needed)]


def prepare(source: str, out: Path, suffixes: str = "", max_bytes: int = 0, *, pinned: bool = False) -> Corpus:
    """Return the token file of `source` in the folder `out`, making it unless it is there and unchanged.

    With `pinned` a file made earlier from the same source is used even if the source has changed since:
    a run that has begun must go on with the data it began with. Raises FatalError if there is no text.
    """
    if not source:
        raise FatalError(_unset())
    folder = source_folder(source)
    if folder.is_file():
        return open_corpus(folder)
    if not folder.is_dir():
        raise FatalError(_missing(source))
    suffixes = wanted_suffixes(source, suffixes)
    asked = {"source": str(folder.resolve()), "suffixes": suffixes, "max_bytes": max_bytes}
    fingerprint = "" if pinned else fingerprint_of(folder, suffixes)
    for path in sorted(out.glob("tokens-*.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        notes = _notes(path)
        same = notes.get("asked") == asked and (pinned or notes.get("fingerprint") == fingerprint)
        if same and path.with_suffix(".bin").exists():
            return open_corpus(path.with_suffix(".bin"))
    return _tokenize(folder, out, asked, fingerprint or fingerprint_of(folder, suffixes))


def open_corpus(path: Path) -> Corpus:
    """Return a prepared token file's description. Raises FatalError if it is not one or is damaged."""
    try:
        notes: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        corpus = Corpus(path=str(path.resolve()), **{k: notes[k] for k in Corpus.__dataclass_fields__ if k != "path"})
        width = TOKEN_BYTES[corpus.dtype]
    except (OSError, ValueError, KeyError, TypeError):
        raise FatalError(
            Problem(
                f"data.path={str(path)!r} is a file without a readable {path.stem}.json beside it",
                "Give a folder of text, or make a token file: python -m trainer prepare SRC --out FOLDER",
            )
        ) from None
    size = path.stat().st_size
    if size != corpus.tokens * width:
        message = f"{str(path)!r} has {size:,} bytes but should have {corpus.tokens * width:,}"
        raise FatalError(Problem(message, "Delete it and its .json; it is made again from the source"))
    return corpus


def check_corpus(config: Config, corpus: Corpus, batch: int) -> None:
    """Raise FatalError if the corpus is too small for one batch or has tokens the model cannot take."""
    problems = _too_small(config, corpus, batch)
    if problems:
        raise FatalError(*problems)


def eval_records(config: Config, records: int) -> int:
    """Records held out for evaluation; the last ones of the file."""
    return int(records * config.data.eval_fraction)


def _notes(path: Path) -> dict[str, Any]:
    """Return what stands beside a token file, or nothing if that is damaged: the token file is made again."""
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(notes, dict) and {*notes, "path"} >= set(Corpus.__dataclass_fields__)
    return notes if whole else {}


def _tokenize(folder: Path, out: Path, asked: dict[str, Any], fingerprint: str) -> Corpus:
    out.mkdir(parents=True, exist_ok=True)
    digest, documents, skipped, size = hashlib.sha256(), [], 0, 0
    limit = asked["max_bytes"] or float("inf")
    with tempfile.NamedTemporaryFile(dir=out, prefix="making-", delete=False) as file:
        try:
            for path in text_files(folder, asked["suffixes"]):
                if size >= limit:
                    break
                text = document(path)
                if text is None:
                    skipped += 1
                    continue
                piece = text + SEPARATOR
                file.write(piece)
                digest.update(piece)
                size += len(piece)
                documents.append(str(path.relative_to(folder)))
            file.flush()
            os.fsync(file.fileno())
            if not documents:
                raise FatalError(_empty(str(folder), asked["suffixes"], skipped))
            name = digest.hexdigest()[:16]
            notes = {
                "tokens": size, "dtype": "uint8", "vocab": 256, "digest": name, "documents": len(documents),
                "skipped": skipped, "asked": asked, "fingerprint": fingerprint, "sources": documents,
            }  # fmt: skip
            os.replace(file.name, out / f"tokens-{name}.bin")
        finally:
            Path(file.name).unlink(missing_ok=True)
    partial = out / f"making-{name}.json"
    partial.write_text(json.dumps(notes, indent=1), encoding="utf-8")
    os.replace(partial, out / f"tokens-{name}.json")
    return open_corpus(out / f"tokens-{name}.bin")


def _needed_tokens(config: Config, batch: int) -> int:
    """Fewest tokens that leave one whole batch after the held-out part."""
    return int(batch * config.model.seq_len / (1 - config.data.eval_fraction)) + config.model.seq_len + 1


def _too_small(config: Config, corpus: Corpus, batch: int) -> list[Problem]:
    needed, problems = _needed_tokens(config, batch), []
    if corpus.tokens < needed:
        problems.append(_small(config.data.path, corpus.tokens, needed))
    if corpus.vocab > config.model.vocab:
        message = f"{config.data.path!r} has a vocabulary of {corpus.vocab}, the model only {config.model.vocab}"
        problems.append(Problem(message, f"Use --set model.vocab={corpus.vocab} or more"))
    return problems


def _unset() -> Problem:
    return Problem("data.path is not set", "Give a folder of text or a prepared file: --set data.path=FOLDER")


def _missing(path: str) -> Problem:
    return Problem(f"data.path={path!r} does not exist here", "Give a folder that every host can read")


def _small(path: str, found: int, needed: int) -> Problem:
    message = f"data.path={path!r} has {found:,} tokens, one batch needs {needed:,}"
    return Problem(message, "Add text, or lower data.global_batch or model.seq_len")


def _empty(path: str, suffixes: str, skipped: int = 0) -> Problem:
    kind = f" with suffix {suffixes}" if suffixes else ""
    binary = f" ({skipped} binary or unreadable files skipped)" if skipped else ""
    return Problem(f"data.path={path!r} has no text files{kind}{binary}", "Give a folder with text in it")
