"""Scalars in the TensorBoard event files of an output folder, as lines of a progress file. Any program writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from xpk.jobs.output.program_log import ProgramLog, program_log
from xpk.model.errors import XpkError
from xpk.storage import Folder
from xpk_shared.event_files import Scalars, decode_event, read_block
from xpk_shared.storage.place import Entry

_NAME = "events.out.tfevents."
_MAX_LOOKED_AT = 5_000  # files of an output folder
_MAX_RECORD = 16 * 1024  # bytes; records of histograms, images and graphs are longer, and not read
_BLOCK = 1 << 18  # bytes
_TAILS = (1 << 16, 1 << 22)  # bytes that are read to find the newest scalars
_ENOUGH = 10  # steps for a rate
_CREATED = re.compile(r"events\.out\.tfevents\.(\d{1,12})\.")
_EVALUATIONS = re.compile(r"(^|/)(eval|val|test)[^/]*/", re.IGNORECASE)  # folders
# Names of scalars, the most specific first.
_TAGS = {
    "loss": (
        *("loss", "train_loss", "train/loss", "loss/train", "training_loss", "train/total_loss", "total_loss"),
        *("learning/loss", "train_loss_step", "batch_loss", "epoch_loss"),
    ),
    "eval_loss": ("eval_loss", "eval/loss", "loss/eval", "val_loss", "val/loss", "loss/val", "validation_loss"),
    "learning_rate": ("learning_rate", "train/learning_rate", "lr", "train/lr", "learning/current_learning_rate"),
    "grad_norm": ("grad_norm", "train/grad_norm", "learning/grad_norm"),
    "step_seconds": ("step_seconds", "perf/step_time_seconds"),
}


def newest_scalars(folder: Folder) -> ProgramLog:
    """Return the newest scalars, from the end of the newest event file that has some."""
    log = ProgramLog()
    for entry in reversed(_event_files(folder)[-2:]):
        for tail in _TAILS:
            content = folder.read_end(entry.name, tail) or b""
            block = read_block(content, _MAX_RECORD, is_aligned=len(content) < tail)
            log = program_log(_lines([block.contents], 0), block.damaged)
            if len(log.steps) >= _ENOUGH or len(content) < tail:
                break
        if log.steps:
            break
    return log


def all_scalars(folder: Folder, max_bytes: int) -> ProgramLog:
    """Return the scalars of all event files; each file is an attempt, unless it was written beside another one.

    Long records are skipped without being read. Raises XpkError if more than `max_bytes` are to be read.
    """
    lines, newest, number, damaged = list[dict[str, Any]](), 0.0, 0, 0
    for entry in _event_files(folder):
        contents, damaged_here, max_bytes = _contents(folder, entry, max_bytes)
        own = list(_lines(contents, number))
        times = [line["time"] for line in own]
        if not own or min(times) < newest:
            continue
        lines, newest, number, damaged = lines + own, max(times), number + 1, damaged + damaged_here
    return program_log(lines, damaged)


def _event_files(folder: Folder) -> list[Entry]:
    """Return the event files by the time at which they were created, without those of evaluations."""
    entries = [entry for entry in folder.find(_NAME, _MAX_LOOKED_AT) if not _EVALUATIONS.search(entry.name)]
    return sorted(entries, key=lambda entry: (_created(entry), entry.name))


def _created(entry: Entry) -> int:
    match = _CREATED.search(entry.name)
    return int(match[1]) if match else 0


def _contents(folder: Folder, entry: Entry, max_bytes: int) -> tuple[list[list[bytes]], int, int]:
    """Return the contents of a file's short records, the number of damaged ones, and what is left of `max_bytes`."""
    parts, start, damaged = list[list[bytes]](), 0, 0
    while start < entry.size:
        part = folder.read_part(entry.name, start, _BLOCK) or b""
        block = read_block(part, _MAX_RECORD)
        if not part or block.end == 0:
            break  # an incomplete record at the end
        parts.append(block.contents)
        start, damaged, max_bytes = start + block.end, damaged + block.damaged, max_bytes - len(part)
        if max_bytes < 0:
            raise XpkError(
                f"the event files of {folder.url} are too large to be read", hint="`tensorboard --logdir` shows them"
            )
    return parts, damaged, max_bytes


def _lines(contents: Sequence[Sequence[bytes]], attempt: int) -> Iterator[dict[str, Any]]:
    """Yield the scalars of records as lines of a progress file."""
    events = [event for part in contents for content in part if (event := decode_event(content))]
    names = _names({tag for event in events for tag in event.values})
    for event in events:
        if math.isfinite(event.time):
            yield {**_numbers(event, names), "time": event.time, "step": event.step, "attempt": attempt}


def _numbers(event: Scalars, names: dict[str, str]) -> dict[str, float]:
    return {names[tag]: value for tag, value in event.values.items() if tag in names}


def _names(tags: set[str]) -> dict[str, str]:
    """Return the keys of a progress file for tags; tags that are another name of the same key are left out."""
    names = {tag: tag for tag in sorted(tags)}
    for key, known in _TAGS.items():
        aliases = sorted((known.index(tag.lower()), tag) for tag in tags if tag.lower() in known)
        for _, tag in aliases:
            del names[tag]
        if aliases:
            names[aliases[0][1]] = key
    return {tag: key for tag, key in names.items() if key not in ("time", "attempt", "step", "started", "steps")}
