"""Mask R-CNN against a reference in NumPy, its samples, and runs: on any mesh, to a target, and over a killed host."""

import dataclasses
import functools
import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from tests.trainer.emulated import Trainer
from tests.trainer.models import reference_mask_rcnn as reference
from tests.trainer.small import killed_and_resumed, run_long
from trainer import config
from trainer.config import Data, Model
from trainer.data import object_decoding, synthetic_scenes
from trainer.data.objects import object_format, pack
from trainer.models import mask_rcnn, object_records, region_heads, region_proposals, region_sampling, registry, resnet
from trainer.models.family import Context
from trainer.parallel import layout
from trainer.parallel.mesh import ALL, sharding
from trainer.parallel.partitioning import Execution

TARGET = 0.5  # mAP of mask-rcnn-tiny, of boxes and of masks; it reaches 0.67 and 0.63
SCENE = 5  # has four objects
GRIDS = ((16, 24), (8, 12), (4, 6))  # rows and columns of the levels
SIDES = np.array([64.0, 96.0] * 2)  # pixels of a box that fills an image
# So many samples that all anchors and regions are among them.
SMALL = Model(
    family="mask_rcnn",
    image=64,
    image_width=96,
    short_side=56,
    long_side=84,
    classes=3,
    width=4,
    blocks="1,2",
    compute_dtype="float32",
    max_boxes=5,
    mask=28,
    detections=6,
    pyramid=8,
    mlp=16,
    anchor_cells=5,
    anchor_samples=4000,
    candidates=24,
    proposals=20,
    region_samples=160,
    mask_layers=1,
    frozen_norm=True,
)
SETTINGS = (
    *("model.family=mask_rcnn", "model.image=32", "model.classes=3", "model.width=4", "model.blocks=1,1"),
    *("model.max_boxes=4", "model.mask=28", "model.detections=4", "model.pyramid=8", "model.mlp=16"),
    *("model.anchor_cells=3", "model.anchor_samples=16", "model.candidates=16", "model.proposals=8"),
    *("model.region_samples=8", "model.mask_layers=1", "model.compute_dtype=float32"),
)


def record(model: Model, number: int) -> Any:
    """Return the record of a synthetic scene, whole as in an evaluation."""
    decoder = object_decoding.ObjectDecoder(object_format(model), Data())
    (decoded,) = decoder.records([pack(*synthetic_scenes.draw(number, model.image))], [number], None)
    return np.asarray(decoded)


def outputs(model: Model, execution: Execution, params: Any, averages: Any, record_BS: Any, box_BR4: Any) -> Any:
    """Return everything that the reference computes, in one program."""
    x_BHWC, objects = object_records.batch(model, record_BS)
    detector = mask_rcnn.Detector(model, execution, params, averages, training=True)
    levels, _ = detector.features(x_BHWC)
    scores = detector.scores_and_offsets(levels)
    heads, categories = detector.heads(levels), jnp.array([[1, 3, 2]])
    proposals = region_proposals.propose(model, *scores, objects.picture_B2)
    losses, _ = mask_rcnn.losses(detector, model, Context(averages, jnp.int32(3), None), record_BS)
    return levels, scores, proposals, heads.classify(box_BR4), heads.masks(box_BR4, categories), losses, objects


def one_chip() -> Execution:
    devices = np.array(jax.devices()[:1])[:, None, None, None]
    return Execution(jax.sharding.Mesh(devices, ("dp", "stage", "fsdp", "tp")))


@functools.cache
def network_values() -> tuple[Any, Any]:
    """Return random (parameters, averages)."""
    random = np.random.default_rng(0)

    def value(path: Any, shape: Any) -> Any:
        deviation = 0.1 if resnet.is_gain(path) else 1 / np.sqrt(np.prod(shape[:-1]))
        return (random.normal(0, deviation, shape) + (path[-1].key == "gain")).astype(np.float32)

    params = jax.tree_util.tree_map_with_path(value, mask_rcnn.shapes(SMALL), is_leaf=lambda x: isinstance(x, tuple))
    return params, jax.tree.map(
        lambda x: random.uniform(0.5, 1, np.shape(x)).astype(np.float32), resnet.averages(SMALL)
    )


@functools.cache
def computed() -> tuple[Any, Any, Any, Any]:
    """Return (parameters, averages, boxes, outputs) of an image."""
    params, averages = network_values()
    box_R4 = np.array([[0.1, 0.2, 0.5, 0.4], [0.0, 0.0, 1.0, 1.0], [0.6, 0.3, 0.7, 0.9]], np.float32)
    record_BS = jnp.asarray(record(SMALL, SCENE)[None])
    program = jax.jit(functools.partial(outputs, SMALL, one_chip()))
    return params, averages, box_R4, jax.device_get(program(params, averages, record_BS, box_R4[None]))


def close(actual: Any, expected: Any) -> None:
    largest = np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4 * largest)


def test_trunk_pyramid_proposals_and_heads_equal_those_of_the_reference() -> None:
    params, averages, box_R4, (levels, scores, proposals, classified, masks, _, objects) = computed()
    pixels = record(SMALL, SCENE)[: 3 * 64 * 96].reshape(1, 64, 96, 3).astype(np.float64)
    expected_levels = reference.pyramid(params, averages, pixels)
    assert tuple(level.shape[1:3] for level in levels) == GRIDS
    for own, expected in zip(levels, expected_levels, strict=True):
        close(own, expected)
    logits, offsets = reference.proposal_outputs(params["proposals"], expected_levels)
    close(scores[0][0], logits)
    close(scores[1][0], offsets)
    anchor, edges = reference.anchors(5, GRIDS), SIDES * np.tile(objects.picture_B2[0], 2)
    assert objects.picture_B2.max() < 0.95, "padded on both sides"
    counts = [3 * rows * columns for rows, columns in GRIDS]
    boxes, best = reference.proposals(logits, offsets, anchor, counts, edges, 24, 20)
    assert 3 < len(boxes) <= 20
    np.testing.assert_allclose(proposals.box_BN4[0][: len(boxes)] * SIDES, boxes, rtol=0, atol=1e-2)
    close(proposals.score_BN[0][: len(boxes)], best)
    assert (proposals.score_BN[0][len(boxes) :] == -np.inf).all()
    used = [level[0] for level in expected_levels[:-1]]
    for n, (box, category) in enumerate(zip(box_R4.astype(np.float64) * SIDES, (1, 3, 2), strict=True)):
        logit, offset = reference.box_head(params["box"], reference.pool(used, box, 7))
        close(classified[0][0, n], logit)
        close(classified[1][0, n], offset)
        close(masks[0, n], reference.mask_head(params["mask"], reference.pool(used, box, 14), category, 1))


def test_losses_equal_those_of_the_reference() -> None:
    params, _, _, (levels, scores, proposals, _, _, losses, objects) = computed()
    count = int(objects.is_real_BN.sum())
    own, categories = objects.box_BN4[0, :count].astype(np.float64) * SIDES, objects.category_BN[0]
    anchor, (logits, offsets) = reference.anchors(5, GRIDS), (part[0].astype(np.float64) for part in scores)
    label, nearest = reference.labels(anchor, own)
    assert 1 < (label == 1).sum() < len(anchor) / 2
    used = (label >= 0).sum()
    expected = {"proposal score": reference.binary_entropy(logits, label)[label >= 0].sum() / used}
    expected["proposal box"] = (
        sum(
            reference.smooth(offsets[n] - reference.offsets_to(own[nearest[n]], anchor[n]), 1 / 9)
            for n in np.flatnonzero(label == 1)
        )
        / used
    )
    kept = proposals.score_BN[0] > -np.inf
    regions = np.concatenate([proposals.box_BN4[0][kept].astype(np.float64) * SIDES, own])
    features = [level[0].astype(np.float64) for level in levels[:-1]]
    variances, totals, entropies = (0.1, 0.2), {"class": 0.0, "box": 0.0}, []
    for box in regions:
        shares = np.array([reference.overlap(box, other) for other in own])
        nth, category = int(shares.argmax()), int(categories[shares.argmax()]) if shares.max() >= 0.5 else 0
        logit, offset = reference.box_head(params["box"], reference.pool(features, box, 7))
        totals["class"] += reference.entropy(logit, category)
        if category:
            target = reference.offsets_to(own[nth], box, variances)
            totals["box"] += reference.smooth(offset[category] - target, 1.0)
            mask = reference.mask_head(params["mask"], reference.pool(features, box, 14), category, 1)
            bitmap = reference.mask_target(box, own[nth], objects.mask_BNMM[0, nth], 28)
            entropies.append(reference.binary_entropy(mask, bitmap).mean())
    assert len(entropies) >= count
    expected |= {name: total / len(regions) for name, total in totals.items()} | {"mask": np.mean(entropies)}
    for name, loss in expected.items():
        assert float(losses[name][0]) == pytest.approx(loss, rel=1e-4), name


def regions_of_the_reference(params: Any, averages: Any, edges: Any) -> tuple[Any, Any]:
    """Return the features of the scene and the proposed regions, by the reference."""
    pixels = record(SMALL, SCENE)[: 3 * 64 * 96].reshape(1, 64, 96, 3).astype(np.float64)
    levels = reference.pyramid(params, averages, pixels)
    logits, offsets = reference.proposal_outputs(params["proposals"], levels)
    counts = [3 * rows * columns for rows, columns in GRIDS]
    regions, _ = reference.proposals(logits, offsets, reference.anchors(5, GRIDS), counts, edges, 24, 20)
    return [level[0] for level in levels[:-1]], regions


def test_detections_equal_those_of_the_reference() -> None:
    (params, averages), model = network_values(), dataclasses.replace(SMALL, detections=12)
    record_BS = jnp.asarray(record(model, SCENE)[None])
    edges = SIDES * np.tile(object_records.batch(model, record_BS)[1].picture_B2[0], 2)
    features, regions = regions_of_the_reference(params, averages, edges)
    pooled = [reference.pool(features, region, 7) for region in regions]
    box, score = params["box"], params["box"]["score"]
    mean = np.mean([reference.box_head(box, part)[0] for part in pooled], axis=0) - score["bias"]
    # Larger differences between regions, so that detections are of all classes.
    box = box | {"score": {"dense": 10 * score["dense"], "bias": np.float32(score["bias"] - 10 * mean)}}
    candidates = []
    for region, part in zip(regions, pooled, strict=True):
        logit, offset = reference.box_head(box, part)
        chances = np.exp(logit - logit.max()) / np.exp(logit - logit.max()).sum()
        moved = [np.clip(reference.moved(region, own, (0.1, 0.2)), 0, edges) for own in offset]
        candidates += [(chances[k], k, moved[k]) for k in (1, 2, 3) if chances[k] > 0.05]
    expected: list[Any] = []
    for chance, category, moved_box in sorted(candidates, key=lambda one: -one[0])[: model.candidates]:
        if all(k != category or reference.overlap(moved_box, other) <= 0.5 for _, k, other in expected):
            expected.append((chance, category, moved_box))
    detect = jax.jit(functools.partial(mask_rcnn.detect, model, one_chip()))
    detections = jax.device_get(detect(params | {"box": box}, averages, record_BS))
    assert detections.category_BK[0].tolist() == [category for _, category, _ in expected[:12]]
    assert set(detections.category_BK[0]) == {1, 2, 3}
    for n, (chance, category, moved_box) in enumerate(expected[:12]):
        assert detections.score_BK[0, n] == pytest.approx(chance, rel=1e-3)
        np.testing.assert_allclose(detections.box_BK4[0, n] * SIDES, moved_box, rtol=0, atol=1e-2)
        mask = reference.mask_head(params["mask"], reference.pool(features, moved_box, 14), category, 1)
        np.testing.assert_allclose(detections.mask_BKMM[0, n], 1 / (1 + np.exp(-mask)), rtol=0, atol=1e-3)


def test_samples_depend_only_on_the_example_and_the_step() -> None:
    random = np.random.default_rng(0)
    record_BS = random.integers(0, 256, (4, 50)).astype(np.uint8)
    positive_BN = random.uniform(size=(4, 40)) < np.array([0.0, 0.1, 0.5, 1.0])[:, None]
    negative_BN = ~positive_BN & (random.uniform(size=(4, 40)) < 0.9)

    @jax.jit
    def draw(record_BS: Any, step: Any, positive_BN: Any, negative_BN: Any) -> Any:
        return region_sampling.sample(region_sampling.example_keys(record_BS, step), positive_BN, negative_BN, 16, 4)

    first = draw(record_BS, jnp.int32(0), positive_BN, negative_BN)
    for n in range(4):
        chosen = np.asarray(first.index_BC)[n][np.asarray(first.is_used_BC)[n]]
        count = min(4, positive_BN[n].sum())
        assert len(set(chosen)) == len(chosen) == min(16, count + negative_BN[n].sum())
        assert positive_BN[n][chosen[:count]].all() and negative_BN[n][chosen[count:]].all()
        assert np.asarray(first.is_positive_BC)[n].sum() == count
    turned = draw(record_BS[::-1], jnp.int32(0), positive_BN[::-1], negative_BN[::-1])
    np.testing.assert_array_equal(np.asarray(turned.index_BC)[::-1], first.index_BC)
    assert (np.asarray(draw(record_BS, jnp.int32(1), positive_BN, negative_BN).index_BC) != first.index_BC).any()


def test_chips_that_divide_the_anchors_of_an_image_choose_the_same_samples() -> None:
    execution = Execution(Mesh(np.array(jax.devices()[:4]).reshape(1, 1, 2, 2), ALL))
    random, counts = np.random.default_rng(0), (16, 4)
    record_BS, positive_BN = random.integers(0, 256, (4, 50), np.uint8), random.uniform(size=(4, 400)) < 0.1
    batch = sharding(execution.mesh, execution.batch)

    def draw(record_BS: Any, positive_BN: Any, execution: Execution | None) -> Any:
        keys = region_sampling.example_keys(record_BS, jnp.int32(0))
        return region_sampling.sample(keys, positive_BN, ~positive_BN, *counts, execution)

    drawing = jax.jit(draw, static_argnums=2, in_shardings=(batch, batch))
    expected, shared = (drawing(record_BS, positive_BN, context) for context in (None, execution))
    jax.tree.map(np.testing.assert_array_equal, shared, expected)


def test_the_target_of_a_mask_is_the_part_of_the_bitmap_in_its_region() -> None:
    random = np.random.default_rng(0)
    bitmap = (random.uniform(size=(8, 8)) < 0.5).astype(np.uint8)
    own = np.array([8.0, 16.0, 40.0, 48.0])
    boxes = np.array([own, [0, 0, 64, 64], [10, 20, 30, 70], [41, 0, 50, 15]], np.float64)
    targets = jax.jit(region_heads.mask_targets)(
        jnp.asarray(boxes[None] / 64), jnp.broadcast_to(own / 64, (1, 4, 4)), jnp.broadcast_to(bitmap, (1, 4, 8, 8))
    )
    for target, box in zip(np.asarray(targets)[0], boxes, strict=True):
        np.testing.assert_array_equal(target, reference.mask_target(box, own, bitmap, 28))


def test_the_full_configuration_has_the_parameters_of_mask_r_cnn_on_a_resnet_50() -> None:
    made = config.load("mask-rcnn").model
    trunk = registry.parameters(dataclasses.replace(made, family="resnet", classes=0))
    pyramid = sum(256 * channels + 256 for channels in (256, 512, 1024, 2048)) + 4 * (9 * 256 * 256 + 256)
    proposals = 9 * 256 * 256 + 256 + 15 * 257
    box = 49 * 256 * 1024 + 1024 + 1024 * 1024 + 1024 + 1025 * (81 + 4 * 81)
    mask = 4 * (9 * 256 * 256 + 256) + 4 * 256 * 256 + 256 + 257 * 80
    assert registry.parameters(made) == trunk + pyramid + proposals + box + mask


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_frozen_stages_keep_their_weights(name: str) -> None:
    frozen = ("model.frozen_norm=true", "model.frozen_stages=1", f"optim.name={name}", "optim.weight_decay=0.1")
    trainer = Trainer(1, 1, 1, *SETTINGS, *frozen)
    before, state = (trainer.init(np.uint32(0)) for _ in range(2))
    for step in range(3):
        ids = step * trainer.batch + np.arange(trainer.batch)
        state, _ = trainer.train()(state, trainer.blocks(ids), trainer.flags)
    initial, trained = kernels(before), kernels(state)
    unchanged = {name for name in initial if np.array_equal(initial[name], trained[name])}
    assert unchanged == {name for name in initial if name.startswith(("trunk/stem/", "trunk/stages/stage1/"))} != set()


def kernels(state: Any) -> dict[str, Any]:
    """Return the kernels of a state by name."""
    leaves = jax.tree_util.tree_leaves_with_path(state["params"])
    names = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    return {name: leaf for name, leaf in names.items() if name.endswith("/kernel")}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("model.frozen_stages=1",), "model.frozen_stages requires model.frozen_norm"),
        (("model.frozen_stages=3", "model.frozen_norm=true"), "= 3 is above 2, the number of stages"),
        (("model.frozen_stages=-1",), "model.frozen_stages = -1 is out of range"),
    ],
)
def test_invalid_frozen_stages_are_one_line(settings: tuple[str, ...], message: str) -> None:
    made = config.load("tiny", [*SETTINGS, *settings])
    (problem,) = layout.check(made, layout.Chips(1, 1, 1))
    assert message in str(problem)


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(900)
def test_losses_are_the_same_on_any_mesh() -> None:
    expected = Trainer(1, 1, 1, *SETTINGS).losses(3)
    for dp, fsdp, tp, pooling in ((2, 1, 1, "gather"), (2, 2, 1, "one_hot"), (1, 1, 2, "gather"), (1, 1, 2, "one_hot")):
        losses = Trainer(dp, fsdp, tp, *SETTINGS, f"model.pooling={pooling}").losses(3)
        np.testing.assert_allclose(losses, expected, rtol=1e-5, err_msg=f"{dp} x {fsdp} x {tp}, {pooling}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_padding_does_not_change_an_evaluation_on_several_chips() -> None:
    """Losses and detections of 11 images in batches of 8 on four chips are those of each image alone."""
    spread, alone = Trainer(2, 1, 2, *SETTINGS), Trainer(1, 1, 1, *SETTINGS, "data.global_batch=1")
    state = jax.device_get(spread.init(np.uint32(0)))
    score = state["params"]["box"]["score"]
    score["dense"] = 50 * score["dense"]  # so that the detections differ
    (loss, log), (expected_loss, expected_log) = (one.evaluate_detections(state, 10, 11) for one in (spread, alone))
    detections, expected = (np.load(io.BytesIO(one.pack())) for one in (log, expected_log))
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert len(expected["counts"]) == 11 and sum(expected["counts"]) > 11 and len(set(expected["category_BK"])) > 1
    for name, values in expected.items():
        np.testing.assert_allclose(detections[name], values, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(1800)
def test_the_small_configuration_learns_its_scenes_to_the_targets(tmp_path: Path) -> None:
    ran = run_long(1800, "--config", "mask-rcnn-tiny", "--set", f"run.output_dir={tmp_path}")
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "eval_map" in line][-1]
    assert last["step"] == config.load("mask-rcnn-tiny").run.steps
    assert last["eval_map"] >= TARGET and last["eval_mask_map"] >= TARGET, last


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_run_after_a_killed_host_is_the_same_to_the_bit(tmp_path: Path) -> None:
    settings = [
        *SETTINGS,
        *("data.path=synthetic", "data.max_bytes=150000", "data.eval_fraction=0.2", "run.steps=12"),
        *("checkpoint.every=4", "run.eval_every=6", "run.log_every=1"),
    ]
    whole, resumed = killed_and_resumed(tmp_path, settings, 6, seconds=400)
    assert min(resumed.losses()) > 1, "from a checkpoint"
    keys = ("step", "eval_map", "eval_mask_map")
    ends = [[[line[key] for key in keys] for line in job.metrics() if "eval_map" in line] for job in (whole, resumed)]
    assert ends[0][-1] == ends[1][-1]
