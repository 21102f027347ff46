"""Synthetic translations: sentences of a toy language, and the same words of another in reverse order.

A data set (`data.path=synthetic`) for trying a model without a corpus. Every word has one translation, so a model can
learn all of them. Each pair is a function of its number alone.
"""

import numpy as np

from trainer.data import translations
from trainer.data.dataset import Corpus
from trainer.data.prepare import find_corpus
from trainer.former_names import SYNTHETIC
from xpk_shared.storage import Place

_PAIRS = 20_000  # number of pairs without data.max_bytes
_BYTES_PER_PAIR = 20  # on average
_SOURCE_WORDS = "abcdefgh"
_TARGET_WORDS = "QWERTYUI"
_WORDS = range(2, 8)  # numbers of words in a sentence


def prepare(out: Place, max_bytes: int = 0) -> Corpus:
    """Return the data set of pairs in the folder `out`; make it if it is missing."""
    count = -(-max_bytes // _BYTES_PER_PAIR) or _PAIRS
    request = {"source": SYNTHETIC, "pairs": count}
    return find_corpus(out, request, None) or translations.write(out, request, "", map(pair, range(count)))


def pair(number: int) -> translations.Pair:
    """Return a sentence and its translation."""
    random = np.random.default_rng(number)
    words = random.integers(len(_SOURCE_WORDS), size=random.integers(_WORDS.start, _WORDS.stop))
    source, target = (" ".join(all_words[n] for n in words) for all_words in (_SOURCE_WORDS, _TARGET_WORDS))
    return source.encode(), target[::-1].encode()
