"""Lengths of pairs of sentences: those that prepared files are divided by, and those that batches are padded to.

A pair is as long as the longer of its sentences, in tokens with the end token.
"""

import bisect
from collections.abc import Iterator

from trainer.config import Config, Model
from trainer.errors import Problem

LENGTHS = tuple(sorted({2**n for n in range(3, 13)} | {3 * 2**n for n in range(3, 12)}))  # 8, 16, 24, 32, 48, ... 6144


def file_length(tokens: int) -> int | None:
    """Return the length of the file that a pair of this length is in, None if it is too long for any."""
    nth = bisect.bisect_left(LENGTHS, tokens)
    return LENGTHS[nth] if nth < len(LENGTHS) else None


def batch_lengths(model: Model) -> tuple[int, ...]:
    """Return the lengths that batches are padded to, in increasing order; the last is that of the record.

    Meaningful only if `problems` finds none.
    """
    return (*sorted(int(text) for text in _texts(model)), model.seq_len)


def problems(config: Config) -> Iterator[Problem]:
    """Yield the settings that a model of pairs does not support."""
    model, texts = config.model, _texts(config.model)
    if model.seq_len not in LENGTHS:
        above = bisect.bisect_left(LENGTHS, model.seq_len)
        nearest = " or ".join(str(length) for length in LENGTHS[max(0, above - 1) : above + 1])
        yield Problem(f"model.seq_len = {model.seq_len} is not a length of files of pairs", f"Use {nearest}")
    valid = [int(text) for text in texts if text.isdecimal() and 0 < int(text) < model.seq_len]
    if len(set(valid)) < len(texts):
        message = f"model.batch_lengths = {model.batch_lengths!r} is not a list of lengths below model.seq_len"
        yield Problem(message, f"Use different integers from 1 to {model.seq_len - 1}, such as 16,32, or omit it")
    elif unequal := [length for length in valid if config.mesh.tp and length % config.mesh.tp]:
        message = f"model.batch_lengths has {unequal[0]}, which is not divisible by mesh.tp = {config.mesh.tp}"
        yield Problem(message, f"Use multiples of {config.mesh.tp}")
    if model.packed and model.family == "transformer" and texts:
        message = f"model.packed = true has no use for model.batch_lengths = {model.batch_lengths!r}"
        yield Problem(message, "Use --set model.batch_lengths= with model.packed, or omit model.packed")
    unsupported = {
        "model.packed": model.family == "gnmt" and model.packed,
        "mesh.stages": config.mesh.stages > 1,
        "data.shuffle = files": config.data.shuffle == "files",
        "quant.matmuls": model.family == "gnmt" and bool(config.quant.products),
        "model.attention_chunk": model.family == "gnmt" and bool(model.attention_chunk),
    }
    for name in (name for name, is_set in unsupported.items() if is_set):
        yield Problem(f"{name} is not supported by {model.family}", "Omit it")
    if model.family == "gnmt" and model.layers < 2:
        yield Problem(f"model.layers = {model.layers} is too small for gnmt", "Use 2 or more")


def _texts(model: Model) -> list[str]:
    return [text.strip() for text in model.batch_lengths.split(",") if text.strip()]
