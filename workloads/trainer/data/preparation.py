"""Choice of the preparation that a model's data needs, for the command `prepare` and for a run."""

from typing import Any

from trainer.config import Config, Model
from trainer.data import click_logs, translations
from trainer.data import prepare as text
from trainer.data.checks import setting_problems
from trainer.data.dataset import Corpus
from trainer.data.prepare import FILE_TOKENS
from trainer.data.records import Kind, record
from trainer.errors import FatalError
from trainer.former_names import SYNTHETIC
from trainer.pair_lengths import LENGTHS
from xpk_shared.storage import Place


def prepare(config: Config, out: Place, *, file_tokens: int = FILE_TOKENS, is_pinned: bool = False) -> Corpus:
    """Return the data set of `data.path` for a model, in the folder `out`; prepare it if it is missing or outdated.

    With `is_pinned`, one prepared earlier from the same source is used even if the source has changed since, because a
    run must continue with the data that it started with. Raises FatalError for settings that do not fit each other, and
    for a source that is not valid.
    """
    if problems := setting_problems(config):
        raise FatalError(*problems)
    if config.data.path == SYNTHETIC:
        return _synthetic(config, out)
    data, model, kind = config.data, config.model, record(config.model).kind
    options: dict[str, Any] = {"file_tokens": file_tokens, "is_pinned": is_pinned}
    if kind is Kind.TRANSLATIONS:
        return translations.prepare(data.path, data.target, out, data.max_bytes, tokenizer=data.tokenizer, **options)
    if kind is Kind.CLICKS:
        return click_logs.prepare(data.path, out, model, data.click_ids, data.suffixes, **options)
    if kind is Kind.IMAGES:
        from trainer.data import prepare_images  # imports NumPy, which `check` does not need

        return prepare_images.prepare(data.path, out, data.max_bytes, **options)
    if kind is Kind.OBJECTS:
        from trainer.data import prepare_objects

        return prepare_objects.prepare(data.path, out, model, data.max_bytes, **options)
    if kind is Kind.SEGMENTS:
        from trainer.data import segment_pairs

        source = (data.path, out, model.seq_len, data.tokenizer, data.suffixes, data.max_bytes)
        return segment_pairs.prepare(*source, **options)
    return text.prepare(data.path, out, data.suffixes, data.max_bytes, tokenizer=data.tokenizer, **options)


def _synthetic(config: Config, out: Place) -> Corpus:
    from trainer.data import (
        synthetic_clicks,
        synthetic_images,
        synthetic_scenes,
        synthetic_translations,
    )  # import NumPy

    kind, max_bytes = record(config.model).kind, config.data.max_bytes
    if kind is Kind.TRANSLATIONS:
        return synthetic_translations.prepare(out, max_bytes)
    if kind is Kind.CLICKS:
        return synthetic_clicks.prepare(config.model, out, max_bytes)
    if kind is Kind.OBJECTS:
        return synthetic_scenes.prepare(config.model, out, max_bytes)
    return synthetic_images.prepare(config.model, out, max_bytes)


def summary(corpus: Corpus, model: Model) -> str:
    """Return a description of a prepared data set for people, of one or two lines."""
    kind = record(model).kind
    files = f" in {len(corpus.files)} files" if len(corpus.files) > 1 else ""
    if kind is Kind.CLICKS:
        return f"{corpus.tokens // record(model).length:,} examples{files}"
    if kind in (Kind.IMAGES, Kind.OBJECTS):
        images = f"{corpus.documents:,} images, {corpus.held_out:,} of them for evaluation{files}"
        skipped = f"\n{corpus.skipped:,} images without objects skipped" if corpus.skipped else ""
        return f"{images}{skipped}"
    if kind is Kind.SEGMENTS:
        pairs = f"{corpus.documents:,} pairs of {corpus.segments} tokens{files}"
        return f"{pairs}\nmask token {corpus.mask_token}, vocabulary {corpus.vocab}"
    count = f"{corpus.documents // 2:,} pairs" if corpus.has_translations else f"{corpus.documents:,} documents"
    left_out = f"pairs of more than {LENGTHS[-1]:,} tokens" if corpus.has_translations else "binary or unreadable files"
    skipped = f", {corpus.skipped} {left_out} skipped" if corpus.skipped else ""
    tokens = f"{corpus.tokens:,} tokens of {count}{files}{skipped}"
    return f"{tokens}\ntokenizer {corpus.tokenizer}, vocabulary {corpus.vocab}"
