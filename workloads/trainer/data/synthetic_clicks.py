"""Synthetic click log whose examples come from a known model, so that the best possible AUC is known.

A data set (`data.path=synthetic`) for trying a model of clicks without a log. The logarithm of the odds of a click is
the sum of a weight of each id, of the dot products of the vectors of two categories (a factorization machine: Rendle,
2010), and of a weight of each integer's logarithm. Frequent ids come first: id n is drawn with a probability
proportional to log((n + 2) / (n + 1)), which is almost Zipf's law.

Dimensions are the suffix of a name:
    N examples   D integers   H ids of a category   S numbers of a record   K width of a category's vector
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.config import Model
from trainer.data.click_logs import notes
from trainer.data.clicks import ClickFormat, click_format
from trainer.data.dataset import Corpus
from trainer.data.prepare import FILE_TOKENS, Writer, find_corpus, write_corpus
from trainer.former_names import SYNTHETIC
from xpk_shared.storage import Place

_EXAMPLES = 1 << 18  # number of examples without data.max_bytes
_CHUNK = 4096  # examples drawn with one seed
_DISTINCT = 4096  # ids of a category with weights of their own; others share theirs
_WIDTH = 4  # of the vectors
_ODDS = -1.0  # log odds of a click before all effects
_IDS, _PAIRS, _INTEGERS = 1.4, 0.5, 0.7  # standard deviations of the three effects on the log odds
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.uint32]


def prepare(model: Model, out: Place, max_bytes: int = 0) -> Corpus:
    """Return the data set of clicks in the folder `out`; draw it if it is missing."""
    form = click_format(model)
    count = max_bytes // (4 * form.length) or _EXAMPLES
    request = {"source": SYNTHETIC, "format": form.identity, "examples": count}

    def write(writer: Writer) -> dict[str, Any]:
        for chunk in range(-(-count // _CHUNK)):
            record_NS, _ = draw(form, chunk)
            writer.add(record_NS[: count - chunk * _CHUNK].astype("<u4").tobytes())
        return {"skipped": 0}

    return find_corpus(out, request, None) or write_corpus(
        out, notes(form) | {"asked": request, "fingerprint": ""}, FILE_TOKENS, write
    )


def draw(form: ClickFormat, chunk: int) -> tuple[Integers, Floats]:
    """Return (records [N, S], true log odds of a click [N]) of a chunk of examples; a function of its number."""
    random = np.random.default_rng([0, chunk])
    integer_ND = np.floor(np.exp(random.normal(1.5, 1.2, (_CHUNK, form.dense)))).astype(np.uint32)
    weights_D = np.random.default_rng([1]).normal(0, _INTEGERS / max(1, form.dense) ** 0.5, form.dense)
    odds_N = _ODDS + (np.log1p(integer_ND) - 1.7) @ weights_D
    features, parts = len(form.tables), [np.zeros((_CHUNK, 1), np.uint32), integer_ND]
    vector_NK, squares_N = np.zeros((_CHUNK, _WIDTH)), np.zeros(_CHUNK)
    for nth, (rows, hots) in enumerate(zip(form.tables, form.hots, strict=True)):
        id_NH = np.minimum(np.exp(random.random((_CHUNK, hots)) * np.log(rows + 1)).astype(np.int64) - 1, rows - 1)
        count_N1 = random.integers(1, hots + 1, (_CHUNK, 1))
        is_real_NH = np.arange(hots) < count_N1
        parts += [count_N1.astype(np.uint32), np.where(is_real_NH, id_NH, 0).astype(np.uint32)]
        weight, vector = _effects(nth, rows, features)
        share_NH = is_real_NH / np.sqrt(count_N1)
        odds_N += np.sum(weight[id_NH % _DISTINCT] * share_NH, axis=1)
        own_NK = np.sum(vector[id_NH % _DISTINCT] * share_NH[..., None], axis=1)
        vector_NK += own_NK
        squares_N += np.sum(own_NK**2, axis=1)
    odds_N += (np.sum(vector_NK**2, axis=1) - squares_N) / 2  # the dot products of all pairs
    parts[0][:, 0] = random.random(_CHUNK) < 1 / (1 + np.exp(-odds_N))
    return np.concatenate(parts, axis=1), odds_N


def _effects(nth: int, rows: int, features: int) -> tuple[Floats, Floats]:
    """Return the weights [V] and vectors [V, K] of the ids of category `nth`."""
    random, count = np.random.default_rng([2, nth]), min(rows, _DISTINCT)
    pairs = max(1, features * (features - 1) / 2)
    deviation = (_PAIRS / (_WIDTH * pairs) ** 0.5) ** 0.5
    return random.normal(0, _IDS / features**0.5, count), random.normal(0, deviation, (count, _WIDTH))
