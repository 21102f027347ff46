"""SSD against a reference in NumPy, and trained on scenes: on any mesh, to a target, and over a killed host."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.emulated import Trainer, scenes
from tests.trainer.models import reference_ssd
from tests.trainer.small import killed_and_resumed, run_long
from trainer import config, ssd_levels
from trainer.config import Model
from trainer.data import synthetic_scenes
from trainer.data.objects import object_format
from trainer.models import object_records, registry, ssd, ssd_loss
from trainer.models.object_records import Objects
from trainer.parallel.partitioning import Execution

TARGET = 0.45  # mAP of ssd-tiny on held-out scenes
SMALL = Model(family="ssd", image=64, classes=3, width=4, blocks="1,2,1", max_boxes=5, compute_dtype="float32")
SETTINGS = (
    *("model.family=ssd", "model.image=64", "model.classes=3", "model.width=4", "model.blocks=1,1"),
    *("model.max_boxes=5", "model.detections=20", "model.compute_dtype=float32", "optim.weight_decay=0"),
)


def execution() -> Execution:
    devices = np.array(jax.devices()[:1])[:, None, None, None]
    return Execution(jax.sharding.Mesh(devices, ("dp", "stage", "fsdp", "tp")))


def random_params(model: Model, random: np.random.Generator) -> tuple[Any, Any]:
    shapes = ssd.shapes(model)
    params = jax.tree.map(
        lambda s: np.asarray(random.normal(0, 0.2, s), np.float32), shapes, is_leaf=lambda x: isinstance(x, tuple)
    )
    return params, jax.tree.map(lambda x: random.uniform(0.5, 1, np.shape(x)).astype(np.float32), ssd.averages(model))


def test_the_default_boxes_are_those_of_mlperf() -> None:
    model = config.load("ssd").model
    assert [(level.grid, level.shapes) for level in ssd_levels.levels(model)] == [
        *((38, 4), (19, 6), (10, 6), (5, 6), (3, 4), (1, 4)),
    ]
    actual = ssd.default_boxes(model)
    assert actual.shape == (8732, 4)
    np.testing.assert_allclose(actual, reference_ssd.default_boxes((38, 19, 10, 5, 3, 1)), atol=1e-6)
    small = ssd.default_boxes(SMALL)
    np.testing.assert_allclose(small, reference_ssd.default_boxes((8, 4), 64), atol=1e-6)


def test_ssd300_has_its_parameters_and_flops() -> None:
    model = config.load("ssd").model
    trunk = 64 * (3 * 49 + 2) + 3 * (2 * 64 * (64 * 9 + 2))  # the stem and the first stage
    for before, after, blocks in ((64, 128, 4), (128, 256, 6)):
        trunk += after * (before * 9 + 2) + after * (before + 2) + (2 * blocks - 1) * after * (after * 9 + 2)
    layers = ((256, 256, 512), (512, 256, 512), (512, 128, 256), (256, 128, 256), (256, 128, 256))
    further = sum(a * b + b + 9 * b * c + c for a, b, c in layers)
    sizes = zip((256, 512, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4), strict=True)
    heads = sum((9 * channels + 1) * shapes * (4 + 81) for channels, shapes in sizes)
    assert registry.parameters(model) == trunk + further + heads == 19_972_534
    assert ssd.flops_per_item(model) == pytest.approx(3 * 2 * 15.86e9, rel=0.01)


@pytest.mark.parametrize("blocks", [pytest.param(False, marks=pytest.mark.slow), True])
def test_outputs_and_losses_equal_those_of_the_reference(blocks: bool) -> None:
    random = np.random.default_rng(0)
    model = dataclasses.replace(SMALL, image=300, width=2, space_to_depth=blocks)
    params, averages = random_params(model, random)
    record_BS = scenes(model)(np.arange(2))
    pixels = record_BS[:, : object_format(model).header].reshape(2, 300, 300, 3).astype(np.float64)
    offsets, logits = reference_ssd.predictions(params, averages, pixels, 3)
    network = ssd.Network(model, execution(), training=False)
    x_BHWC, objects = object_records.batch(model, jnp.asarray(record_BS))
    offset_BD4, logit_BDK, _ = jax.jit(network.predict)(params, averages, x_BHWC)
    for actual, expected in ((offset_BD4, offsets), (logit_BDK, logits)):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    defaults = reference_ssd.default_boxes((38, 19, 10, 5, 3, 1))
    scale = 2 / np.abs(offsets).max()  # as after some training
    losses = ssd_loss.losses(
        ssd_loss.match(objects, jnp.asarray(ssd.default_boxes(model))),
        *(jnp.asarray(part, jnp.float32) for part in (defaults, offsets * scale, logits * scale)),
    )
    for n in range(2):
        drawn = synthetic_scenes.draw(n, 300)[1]
        box_N4 = np.array([one["bbox"] for one in drawn.objects])
        box_N4[:, 2:] += box_N4[:, :2]
        box_N4 = box_N4[:, [1, 0, 3, 2]] / ((drawn.height, drawn.width) * 2)
        categories = [one["category"] for one in drawn.objects]
        loss = reference_ssd.loss(list(box_N4), categories, defaults, offsets[n] * scale, logits[n] * scale)
        assert float(losses[n]) == pytest.approx(loss, rel=1e-4)


def objects_of(box_N4: Any, category_N: Any, is_crowd_N: Any = None) -> Objects:
    count = len(category_N)
    crowds = np.zeros(count, bool) if is_crowd_N is None else np.array(is_crowd_N)
    parts = np.array(box_N4, np.float32), np.array(category_N), crowds, np.zeros((count, 0, 0), np.uint8), np.ones(2)
    return Objects(*(jnp.asarray(part)[None] for part in parts))


def test_each_object_has_a_default_box_and_crowds_have_none() -> None:
    match, losses = jax.jit(ssd_loss.match), jax.jit(ssd_loss.losses)
    default_D4 = jnp.array([[0, 0, 0.5, 0.5], [0, 0.5, 0.5, 1], [0.5, 0, 1, 0.5], [0.5, 0.5, 1, 1]])
    small, large = [0.6, 0.1, 0.7, 0.2], [0.05, 0.05, 0.5, 0.5]
    matches = match(objects_of([small, large, [0, 0.5, 0.5, 1], [0] * 4], [2, 3, 1, 0], [0, 0, 1, 0]), default_D4)
    assert matches.category_BD[0].tolist() == [3, 0, 2, 0]
    expected = jnp.array([large, default_D4[1].tolist(), small, default_D4[3].tolist()])
    np.testing.assert_allclose(matches.box_BD4[0], expected)
    same = match(objects_of([small, [0.61, 0.1, 0.7, 0.2]], [2, 1]), default_D4)
    assert same.category_BD[0].tolist() == [0, 0, 1, 0], "the last of two objects with the same default box"
    none = match(objects_of([[0] * 4], [0]), default_D4)
    logits = jnp.ones((1, 4, 4))
    assert not none.is_positive_BD.any()
    assert losses(none, default_D4, jnp.ones((1, 4, 4)), logits).tolist() == [0]
    gradient = jax.grad(lambda x: losses(matches, default_D4, x, logits).sum())(jnp.ones((1, 4, 4)))
    assert np.isfinite(gradient).all() and (gradient[0, 1] == 0).all()


def test_mining_takes_three_times_as_many_negatives_of_the_largest_loss() -> None:
    random = np.random.default_rng(0)
    loss_BD, is_positive_BD = random.uniform(size=(4, 50)), random.uniform(size=(4, 50)) < [[0], [0.04], [0.1], [0.9]]
    mined_BD = ssd_loss.hard_negatives(jnp.asarray(loss_BD), jnp.asarray(is_positive_BD))
    for loss_D, is_positive_D, mined_D in zip(loss_BD, is_positive_BD, np.asarray(mined_BD), strict=True):
        negatives = sorted(np.flatnonzero(~is_positive_D), key=lambda d: -loss_D[d])
        assert sorted(negatives[: 3 * is_positive_D.sum()]) == np.flatnonzero(mined_D).tolist()


def test_detections_are_those_of_the_reference() -> None:
    random = np.random.default_rng(1)
    params, averages = random_params(SMALL, random)
    record_BS = scenes(SMALL)(np.arange(2))
    model = dataclasses.replace(SMALL, detections=12)
    detections = jax.jit(functools.partial(ssd.detect, model, execution()))(params, averages, record_BS)
    network = ssd.Network(model, execution(), training=False)
    x_BHWC, _ = object_records.batch(model, jnp.asarray(record_BS))
    offset_BD4, logit_BDK, _ = (np.asarray(part, np.float64) if not isinstance(part, dict) else part
                                for part in jax.jit(network.predict)(params, averages, x_BHWC))  # fmt: skip
    defaults = ssd.default_boxes(model).astype(np.float64)
    for b in range(2):
        expected = _detected(offset_BD4[b], logit_BDK[b], defaults)[:12]
        assert detections.category_BK[b].tolist() == [category for _, category, _ in expected]
        np.testing.assert_allclose(detections.score_BK[b], [score for score, _, _ in expected], rtol=1e-4)
        np.testing.assert_allclose(detections.box_BK4[b], [box for _, _, box in expected], atol=1e-4)


def _detected(offset_D4: Any, logit_DK: Any, defaults: Any) -> list[tuple[float, int, Any]]:
    """Return (score, category, box) of one image's detections by falling score."""
    score_DK = np.exp(logit_DK) / np.exp(logit_DK).sum(1, keepdims=True)
    size = defaults[:, 2:] - defaults[:, :2]
    center = (defaults[:, 2:] + defaults[:, :2]) / 2 + offset_D4[:, :2] * 0.1 * size
    half = size * np.exp(np.minimum(offset_D4[:, 2:] * 0.2, np.log(1000 / 16))) / 2
    box_D4 = np.clip(np.concatenate([center - half, center + half], 1), 0, 1)
    results = []
    for category in range(1, score_DK.shape[1]):
        left = [d for d in np.argsort(-score_DK[:, category])[:200] if score_DK[d, category] > 0.05]
        while left:
            best = left.pop(0)
            results.append((float(score_DK[best, category]), category, box_D4[best]))
            left = [d for d in left if reference_ssd.overlap(box_D4[best], box_D4[d]) <= 0.5]
    return sorted(results, key=lambda result: -result[0])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ssd_trains_the_same_on_any_mesh() -> None:
    expected = Trainer(1, 1, 1, *SETTINGS).losses(3)
    for dp, fsdp, tp in ((2, 2, 1), (2, 1, 1), (1, 1, 2)):
        spread = Trainer(dp, fsdp, tp, *SETTINGS)
        np.testing.assert_allclose(spread.losses(3), expected, rtol=1e-5)
    assert "collective-permute" in spread.train().as_text(), "halos are exchanged"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_unequal_numbers_of_rows_train_the_same() -> None:
    """Of 72 x 72 pixels the trunk has 18 rows, and then 9 rows on two chips."""
    settings = (*SETTINGS, "model.image=72")
    expected = Trainer(1, 1, 1, *settings).losses(2)
    np.testing.assert_allclose(Trainer(1, 1, 2, *settings).losses(2), expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_padding_does_not_change_an_evaluation_on_several_chips() -> None:
    """Losses and detections of 11 images in batches of 8 on four chips are those of each image alone."""
    spread, alone = Trainer(2, 1, 2, *SETTINGS), Trainer(1, 1, 1, *SETTINGS, "data.global_batch=1")
    state = jax.device_get(spread.init(np.uint32(0)))
    (loss, log), (expected_loss, expected) = (one.evaluate_detections(state, 10, 11) for one in (spread, alone))
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    images = [synthetic_scenes.draw(n, 64)[1] for n in range(10, 21)]
    precisions = [one.precisions(spread.config.model, images)["map"] for one in (log, expected)]
    assert precisions[0] == pytest.approx(precisions[1], abs=1e-6)
    with pytest.raises(ValueError, match="zip"):
        log.precisions(spread.config.model, images[1:])


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(900)
def test_the_small_configuration_learns_its_scenes_to_the_target(tmp_path: Path) -> None:
    ran = run_long(800, "--config", "ssd-tiny", "--set", f"run.output_dir={tmp_path}")
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    held_out = [line for line in lines if "eval_map" in line][-1]
    assert (held_out["step"], held_out["eval_images"]) == (config.load("ssd-tiny").run.steps, 128)
    assert held_out["eval_map"] >= TARGET, ran.stdout


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_killed_host_resumes_to_the_bit(tmp_path: Path) -> None:
    settings = [
        *(*SETTINGS, "data.path=synthetic", f"data.max_bytes={48 * 3 * 64 * 64}", "data.eval_fraction=0.2"),
        *("data.expansion=2", "run.steps=12", "checkpoint.every=3", "run.eval_every=6", "run.log_every=1"),
    ]
    whole, resumed = killed_and_resumed(tmp_path, settings, 7, seconds=400)
    assert min(resumed.losses()) > 1
    precisions = [[line["eval_map"] for line in job.metrics() if "eval_map" in line] for job in (whole, resumed)]
    assert precisions[0][-1] == precisions[1][-1]
