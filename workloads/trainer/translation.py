"""BLEU of a model's translations, by sacrebleu, as sums that hosts and slices can add."""

# mypy: disallow-untyped-calls=False

import dataclasses
from typing import Any

import jax
import numpy as np

from trainer.config import Config
from trainer.data.dataset import Corpus
from trainer.data.records import FIRST_TOKEN, Kind, record
from trainer.data.tokenizer import BYTES, Tokenizer, open_tokenizer
from trainer.errors import FatalError, Problem

_ORDERS = 4  # longest n-gram


@dataclasses.dataclass(frozen=True, slots=True)
class BleuSums:
    """Sums over translated sentences; the sum of two of them is that of all their sentences."""

    matches: tuple[float, ...]  # n-grams that are in the reference, by n
    candidates: tuple[float, ...]  # n-grams of the translations, by n
    words: float  # of the translations
    reference_words: float

    def __add__(self, other: "BleuSums") -> "BleuSums":
        return BleuSums.of(tuple(map(sum, zip(self.numbers, other.numbers, strict=True))))

    @classmethod
    def of(cls, numbers: tuple[float, ...]) -> "BleuSums":
        """Return the sums with these numbers, as `numbers` returns them."""
        return cls(numbers[:_ORDERS], numbers[_ORDERS : 2 * _ORDERS], *numbers[2 * _ORDERS :])

    @property
    def numbers(self) -> tuple[float, ...]:
        """All sums as one tuple."""
        return (*self.matches, *self.candidates, self.words, self.reference_words)

    def bleu(self) -> float:
        """Return the corpus's BLEU, 0 to 100."""
        sums = [round(number) for number in self.numbers]
        correct, total, (words, reference_words) = sums[:_ORDERS], sums[_ORDERS:-2], sums[-2:]
        return float(_sacrebleu().BLEU.compute_bleu(correct, total, words, reference_words, smooth_method="exp").score)


def check(config: Config, corpus: Corpus) -> None:
    """Raise FatalError if the configured evaluations cannot translate: without sacrebleu, or without the tokenizer."""
    if record(config.model).kind is not Kind.TRANSLATIONS or not config.model.beam:
        return
    _sacrebleu()
    if corpus.tokenizer != BYTES and not config.data.tokenizer:
        message = f"BLEU requires the text of translations, but {corpus.path!r} has only tokens of {corpus.tokenizer}"
        hint = "Use --set data.tokenizer=FILE with its tokenizer, or --set model.beam=0 to evaluate only the loss"
        raise FatalError(Problem(message, hint))


def bleu_sums(config: Config, translations: Any) -> BleuSums:
    """Return the sums over a batch of `trainer.step.programs.Translations` without its padding."""
    number_BT, reference_BT, weight_B = jax.device_get(translations)
    tokenizer, is_counted_B = open_tokenizer(config.data.tokenizer), weight_B > 0
    texts, references = ([text(tokenizer, row_T) for row_T in x[is_counted_B]] for x in (number_BT, reference_BT))
    if not texts:
        return BleuSums((0.0,) * _ORDERS, (0.0,) * _ORDERS, 0.0, 0.0)
    score = _sacrebleu().BLEU().corpus_score(texts, [references])
    return BleuSums(tuple(score.counts), tuple(score.totals), score.sys_len, score.ref_len)


def text(tokenizer: Tokenizer, number_T: Any) -> str:
    """Return the text of numbers of a record, of which those below FIRST_TOKEN mark its end."""
    number_T = np.asarray(number_T)
    return tokenizer.decode((number_T[number_T >= FIRST_TOKEN] - FIRST_TOKEN).tolist())


def _sacrebleu() -> Any:
    try:
        from sacrebleu import metrics  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        message = "the evaluation of translations requires sacrebleu, which is not installed"
        hint = "pip install 'xpk-multislice[translation]', or use --set model.beam=0 to evaluate only the loss"
        raise FatalError(Problem(message, hint)) from error
    return metrics
