"""ResNet against a reference in NumPy, and trained on photographs: on any mesh, to a target, and over a killed host."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer import photographs
from tests.trainer.emulated import Trainer
from tests.trainer.models import reference_resnet
from tests.trainer.small import killed_and_resumed
from trainer.config import Model
from trainer.data import batches, prepare_images, reader
from trainer.data.sampler import Order
from trainer.models import resnet
from trainer.models.family import Context
from trainer.parallel.partitioning import Execution
from trainer.storage import open_place

SMALL = Model(family="resnet", image=32, classes=5, width=4, blocks="2,2", compute_dtype="float32")
SETTINGS = (
    *("model.family=resnet", "model.image=32", "model.classes=2", "model.width=8", "model.blocks=1,1"),
    *("model.compute_dtype=float32", "optim.name=lars", "optim.lr=4", "optim.grad_clip_norm=0"),
    *("data.global_batch=16", "optim.weight_decay=0.0001"),
)
BLOCKS = "model.space_to_depth=true"


def random_tree(tree: Any, random: np.random.Generator, low: float) -> Any:
    return jax.tree.map(lambda x: random.uniform(low, 1.0, np.shape(x)).astype(np.float32), tree)


def one_chip() -> Execution:
    chip = np.array(jax.devices()[:1])[:, None, None, None]
    return Execution(jax.sharding.Mesh(chip, ("dp", "stage", "fsdp", "tp")))


def drawn(model: Model, count: int) -> tuple[Any, Any, Any, Any]:
    """Return random (parameters, averages, records, pixels)."""
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda s: np.asarray(random.normal(0, 0.3, s), np.float32), resnet.shapes(model), is_leaf=resnet._is_shape
    )
    averages = random_tree(resnet.averages(model), random, 0.5)
    record_BS = random.integers(0, 256, (count, 3 * 32 * 32 + 2)).astype(np.uint8)
    record_BS[:, -2:] = np.arange(count)[:, None] % model.classes * [1, 0]
    return params, averages, record_BS, record_BS[:, :-2].reshape(count, 32, 32, 3).astype(np.float64)


@pytest.mark.parametrize("block", ["bottleneck", "basic"])
def test_logits_equal_those_of_the_reference(block: str) -> None:
    own = dataclasses.replace(SMALL, block=block)
    params, averages, record_BS, pixels = drawn(own, 2)
    expected = reference_resnet.logits(params, averages, pixels)
    for model in (own, dataclasses.replace(own, space_to_depth=True)):
        x_BHWC, _ = resnet.images(model, jnp.asarray(record_BS))
        logits, _ = jax.jit(resnet.Network(model, one_chip(), training=False).logits)(params, averages, x_BHWC)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("training", [True, False])
def test_losses_accuracy_and_averages_equal_those_of_the_reference(training: bool) -> None:
    """In training labels are smoothed, and each group of 2 images has its own statistics."""
    model = dataclasses.replace(SMALL, norm_examples=2)
    params, averages, record_BS, pixels = drawn(model, 6)
    weight_B = np.array([1.0] * 6 if training else [1, 0, 1, 1, 0, 1], np.float32)
    context = Context(averages, jnp.int32(0) if training else None, None)
    sums = jax.jit(functools.partial(resnet.sums, model, one_chip()))(params, context, record_BS, weight_B)
    statistics = reference_resnet.BatchStatistics(2)
    logits = reference_resnet.logits(params, statistics if training else averages, pixels)
    label_B, smoothing = np.arange(6) % 5, 0.1 if training else 0.0
    entropies = [reference_resnet.entropy(logits[n], n % 5, smoothing) for n in range(6)]
    assert float(sums.loss) == pytest.approx(np.dot(entropies, weight_B), rel=1e-4)
    assert float(sums.weight) == weight_B.sum()
    assert float(sums.correct) == ((logits.argmax(1) == label_B) * weight_B).sum()
    assert len(statistics.seen) == (15 if training else 0)
    for path, batch in statistics.seen.items():
        for old, new, own in zip(at(averages, path), at(sums.averages, path), batch, strict=True):
            np.testing.assert_allclose(new, 0.9 * old + 0.1 * own, rtol=1e-4, atol=1e-4)


def at(averages: Any, path: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return (mean, variance) of the unit at a path, in which a number is that of a layer of a stack."""
    layers = [key for key in path if isinstance(key, int)]
    for key in path:
        averages = averages if isinstance(key, int) else averages[key]
    mean, variance = averages["mean"], averages["variance"]
    return (mean[layers[0]], variance[layers[0]]) if layers else (mean, variance)


def test_the_first_convolution_on_blocks_of_pixels_is_the_same() -> None:
    random = np.random.default_rng(0)
    x_BHWC, kernel = (random.normal(size=s).astype(np.float32) for s in ((2, 16, 24, 3), (7, 7, 3, 5)))
    expected = reference_resnet.convolve(x_BHWC.astype(np.float64), kernel.astype(np.float64), 2)

    def convolve(kernel_44CD: Any) -> Any:
        return jax.lax.conv_general_dilated(
            resnet.pixel_blocks(jnp.asarray(x_BHWC)),
            kernel_44CD,
            (1, 1),
            [(2, 1)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    block_kernel = resnet.block_kernel(jnp.asarray(kernel))
    np.testing.assert_allclose(convolve(block_kernel), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    planted = (
        np.asarray(block_kernel).reshape(4, 4, 2, 2, 3, 5).swapaxes(2, 3).reshape(4, 4, 12, 5)
    )  # rows and columns swapped
    assert np.abs(convolve(planted) - expected).max() > 1


class Photographs(Trainer):
    """A trainer on the small set of photographs, in the order and with the crops of a run."""

    def __init__(self, folder: Path, dp: int, fsdp: int, tp: int, *settings: str) -> None:
        super().__init__(dp, fsdp, tp, *SETTINGS, *settings)
        corpus = prepare_images.prepare(str(folder / "source"), open_place(folder / "data"))
        counts = reader.counts(corpus, self.config.model)
        self.reader = reader.Reader(corpus, self.config.model, counts)
        self.trained, self.held_out = corpus.documents - corpus.held_out, corpus.held_out

    def run(self, steps: int) -> tuple[Any, list[float]]:
        """Train; return the state and the losses."""
        state, losses = self.init(np.uint32(0)), []
        order = Order(0, self.batch, self.trained)
        for step in range(steps):
            self.read = functools.partial(self.reader, step=step)
            state, out = self.train()(state, self.blocks(order.ids(step)), self.flags)
            losses.append(float(out["loss"]))
        return state, losses

    def accuracy(self, state: Any) -> float:
        self.read, correct = self.reader, 0.0
        for ids in batches.eval_ids(self.batch, self.trained, self.held_out):
            correct += float(self.programs.evaluate(state["params"], self.blocks(ids), state["averages"]).correct)
        return correct / self.held_out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    photographs.write_folders(folder / "source")
    return folder


@pytest.mark.slow
def test_photographs_train_the_same_on_any_mesh(folder: Path) -> None:
    _, expected = Photographs(folder, 1, 1, 1).run(3)
    for dp, fsdp, tp in ((2, 1, 1), (2, 2, 1), (1, 1, 2)):
        _, losses = Photographs(folder, dp, fsdp, tp, BLOCKS).run(3)
        np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.slow
def test_two_kinds_of_photographs_are_told_apart(folder: Path) -> None:
    trainer = Photographs(folder, 1, 1, 1, BLOCKS, "run.steps=40", "optim.warmup=8", "optim.schedule=polynomial")
    state, losses = trainer.run(40)
    assert trainer.accuracy(state) >= 0.9, losses


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(900)
def test_photographs_after_a_killed_host_are_the_same_to_the_bit(folder: Path, tmp_path: Path) -> None:
    settings = [
        *SETTINGS,
        *(BLOCKS, f"data.path={folder / 'source'}", "run.steps=12", "checkpoint.every=4", "run.eval_every=6"),
        *("run.log_every=1", "data.shards=2"),
    ]
    whole, resumed = killed_and_resumed(tmp_path, settings, 6, seconds=400)
    accuracies = [[r["eval_accuracy"] for r in job.metrics() if "eval_accuracy" in r] for job in (whole, resumed)]
    assert accuracies[0][-1] == accuracies[1][-1]
