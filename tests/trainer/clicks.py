"""A small model of clicks on the emulated chips of this process, and the same model in plain NumPy."""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.trainer.emulated import Trainer
from trainer.config import Model
from trainer.data.clicks import ClickFormat, click_format
from trainer.models.embedding import row_of

SETTINGS = (
    *("model.family=dlrm", "model.embed=16", "model.dense_features=4", "model.tables=2000,1500,40,7"),
    *("model.hots=1,3,1,2", "model.bottom_mlp=16", "model.top_mlp=32,16", "optim.lr=0.01"),
    *("model.compute_dtype=float32", "model.placements=rows,rows,columns,replicated"),
)
Floats = npt.NDArray[np.float64]


def record_of(form: ClickFormat, number: int) -> bytes:
    """Return an example with frequent ids, and from none to all of the ids of a category."""
    random = np.random.default_rng(number)
    dense = random.integers(0, 50, form.dense).tolist()
    counts = [int(random.integers(0, hots + 1)) for hots in form.hots]
    ids = [(random.zipf(1.3, count) % rows).tolist() for count, rows in zip(counts, form.tables, strict=True)]
    return form.encode(int(random.random() < 0.3), dense, ids)


class ClickTrainer(Trainer):
    """Programs of the small model of clicks."""

    def __init__(self, dp: int, fsdp: int, *settings: str, tp: int = 1, **sizes: Any) -> None:
        super().__init__(dp, fsdp, tp, *SETTINGS, *settings, **sizes)
        self.read = self.records

    def records(self, ids_N: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Return the records of these examples."""
        form = click_format(self.config.model)
        return np.stack([np.frombuffer(record_of(form, int(n)), "<u4") for n in ids_N])


@functools.cache
def clicks_on(dp: int, fsdp: int, *settings: str) -> ClickTrainer:
    """Return the small model of clicks on a mesh; shared by tests, because compiling is slow."""
    return ClickTrainer(dp, fsdp, *settings)


def reference_logits(model: Model, params: Any, records: npt.NDArray[np.uint32]) -> Floats:
    """Return the logits of records one by one, in float64."""
    form = click_format(model)
    w = {name: {key: np.asarray(value, np.float64) for key, value in _flat(tree)} for name, tree in params.items()}

    def mlp(layers: Any, x: Floats) -> Floats:
        depth = len(layers) // 2
        for n in range(1, depth + 1):
            x = x @ layers[f"layer{n}/dense"] + layers[f"layer{n}/bias"]
            x = np.maximum(x, 0) if n < depth else x
        return x

    logits = []
    for record in records.astype(np.int64):
        features = [np.maximum(mlp(w["bottom"], np.log1p(record[1 : 1 + form.dense].astype(np.float64))), 0)]
        for nth, (start, rows) in enumerate(zip(form.offsets, form.tables, strict=True)):
            total = np.zeros(model.embed)
            for number in record[start + 1 : start + 1 + record[start]]:
                total += w["tables"][f"table{nth + 1:03d}"][int(row_of(np.int32(number), rows))]
            features.append(total)
        pairs = [features[i] @ features[j] for i in range(len(features)) for j in range(i)]
        logits.append(mlp(w["top"], np.concatenate([features[0], pairs]))[0])
    return np.array(logits)


def log_losses(logits: Floats, labels: Any) -> Floats:
    """Return the log loss of each example."""
    probability = 1 / (1 + np.exp(-logits))
    losses: Floats = -np.where(np.asarray(labels) == 1, np.log(probability), np.log(1 - probability))
    return losses


def _flat(tree: Any, prefix: str = "") -> Any:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value
