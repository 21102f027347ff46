"""The area under the ROC curve equals scikit-learn's on any mesh, with ties and padding."""

import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from trainer.models.family import Predictions
from trainer.parallel.mesh import ALL
from trainer.step.area_under_curve import PairCounts, count_pairs


def area(dp: int, fsdp: int, scores: Any, labels: Any) -> float:
    """Return the area of batches [T, B] on a mesh."""
    mesh = Mesh(np.array(jax.devices()[: dp * fsdp]).reshape(dp, 1, fsdp, 1), ALL)
    batches = [Predictions(*rows) for rows in zip(scores, labels, strict=True)]
    counts: PairCounts = jax.device_get(jax.jit(functools.partial(count_pairs, mesh))(batches))
    return counts.area


def predictions(examples: int, digits: int) -> tuple[Any, Any]:
    """Return scores with ties, of both signs of 0, and labels of which the last are padding."""
    random = np.random.default_rng(examples)
    scores = np.round(random.normal(size=(2, examples)), digits).astype(np.float32)
    labels = (random.random((2, examples)) < 1 / (1 + np.exp(-scores))).astype(np.int32)
    scores[0, :4] = (0.0, -0.0, 0.0, -0.0)
    labels[-1, -examples // 3 :] = -1
    return scores, labels


@pytest.mark.parametrize(("dp", "fsdp"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("digits", [1, 6], ids=["many ties", "few ties"])
def test_the_area_equals_scikit_learns(dp: int, fsdp: int, digits: int) -> None:
    from sklearn.metrics import roc_auc_score

    scores, labels = predictions(240, digits)
    is_real = labels >= 0
    assert area(dp, fsdp, scores, labels) == pytest.approx(roc_auc_score(labels[is_real], scores[is_real]), abs=1e-12)
    assert area(dp, fsdp, scores, np.maximum(labels, 0)) != area(dp, fsdp, scores, labels)


def test_counts_beyond_32_bits_are_exact() -> None:
    from sklearn.metrics import roc_auc_score

    scores, labels = predictions(160_000, 3)
    is_real = labels >= 0
    assert area(1, 2, scores, labels) == pytest.approx(roc_auc_score(labels[is_real], scores[is_real]), abs=1e-12)


def test_without_positives_there_is_no_area() -> None:
    assert math.isnan(area(1, 1, np.zeros((1, 4), np.float32), np.zeros((1, 4), np.int32)))
