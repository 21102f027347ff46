"""ResNet and BERT train the same on every mesh, are evaluated without padding, and learn."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.emulated import TEXT, Trainer
from trainer import config
from trainer.config import Model
from trainer.data import batches, records, synthetic_images
from trainer.models import bert, registry, resnet
from trainer.parallel.partitioning import Execution

RESNET = (
    *("model.family=resnet", "model.image=32", "model.classes=10", "model.width=4", "model.blocks=1,2"),
    *("optim.name=lars", "optim.lr=4", "optim.grad_clip_norm=0"),
)
BERT = ("model.family=bert", "optim.name=lamb", "optim.lr=0.02")
TRANSFORMER = ("model.family=transformer", "model.batch_lengths=8")
GNMT = ("model.family=gnmt", "model.batch_lengths=8")


@functools.cache
def trainer(settings: tuple[str, ...], dp: int = 1, fsdp: int = 1, tp: int = 1) -> Trainer:
    return Trainer(dp, fsdp, tp, *settings)


@pytest.mark.slow
def test_image_height_is_sharded_with_halo_exchange() -> None:
    spread = trainer((*RESNET, "optim.update_axes=fsdp"), 1, 2, 2)
    np.testing.assert_allclose(spread.losses(3), trainer(RESNET).losses(3), rtol=1e-4)
    assert "collective-permute" in spread.train().as_text()
    kernel = spread.programs.state["opt"][1].momentum["stages"]["stage2"]["rest"]["spatial"]["kernel"]
    assert math.prod(kernel.sharding.shard_shape(kernel.shape)) == kernel.size // 2


@pytest.mark.slow
def test_bert_trains_the_same_on_any_mesh() -> None:
    spread = Trainer(1, 2, 2, *BERT, "mesh.stages=2", "mesh.microbatches=2")
    np.testing.assert_allclose(spread.losses(3), trainer(BERT).losses(3), rtol=1e-5)


def evaluation(settings: tuple[str, ...], weigh: Callable[[Any], Any] = lambda weight: weight) -> float:
    """Return the mean loss of 11 examples in batches of 8 on four chips; `weigh` may change the weights."""
    made = trainer(settings, 1, 2, 2) if settings == RESNET else trainer(settings, 2, 1, 2)
    state, total, weights = made.init(np.uint32(0)), 0.0, 0.0
    for ids in batches.eval_ids(8, 10, 11):
        blocks = made.blocks(ids)
        blocks = blocks._replace(weight=weigh(blocks.weight))
        sums = made.programs.evaluate(state["params"], blocks, state.get("averages"))
        total, weights = total + float(sums.loss), weights + float(sums.weight)
    return total / weights


def one_by_one(settings: tuple[str, ...]) -> float:
    """Return the same, from batches of eight times the same example."""
    made = trainer(settings, 1, 2, 2) if settings == RESNET else trainer(settings, 2, 1, 2)
    state, losses, weights = made.init(np.uint32(0)), 0.0, 0.0
    for n in range(11):
        sums = made.programs.evaluate(state["params"], made.blocks(np.full(8, 10 + n)), state.get("averages"))
        losses, weights = losses + float(sums.loss), weights + float(sums.weight)
    return losses / weights


@pytest.mark.slow
@pytest.mark.parametrize("settings", [RESNET, BERT], ids=["resnet", "bert"])
def test_padding_does_not_change_an_evaluation_of_any_family(settings: tuple[str, ...]) -> None:
    expected = one_by_one(settings)
    assert evaluation(settings) == pytest.approx(expected, rel=1e-5)
    assert evaluation(settings, jnp.ones_like) != pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [TRANSFORMER, GNMT], ids=["transformer", "gnmt"])
def test_padding_has_no_tokens_to_translate(settings: tuple[str, ...]) -> None:
    expected = one_by_one(settings)
    assert evaluation(settings) == pytest.approx(expected, rel=1e-5)
    assert evaluation(settings, jnp.ones_like) == pytest.approx(expected, rel=1e-5), "whatever the weight of padding is"
    assert evaluation(settings, lambda weight: weight * np.arange(weight.size).reshape(weight.shape)) != pytest.approx(
        expected, rel=1e-5
    ), "examples differ, and their weights count"


def test_resnet_50_has_its_parameters_and_flops() -> None:
    made = config.load("resnet50").model
    assert registry.parameters(made) == 25_557_032  # like every published ResNet-50 with 1000 classes
    assert resnet.flops_per_item(made) == pytest.approx(3 * 2 * 4.09e9, rel=0.01)  # 4.09 G multiplications forward
    basic = config.load("resnet50", ["model.block=basic"]).model
    assert registry.parameters(basic) == 21_797_672  # ResNet-34
    assert resnet.flops_per_item(basic) == pytest.approx(3 * 2 * 3.66e9, rel=0.01)


def test_bert_large_has_its_parameters() -> None:
    made = config.load("bert-large", ["model.vocab=30522"]).model
    layer = 4 * (1024 * 1024 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
    inputs, head = 30522 * 1024 + 512 * 1024 + 2 * 1024, 1024 * 1024 + 3 * 1024 + 30522
    assert registry.parameters(made) == 24 * layer + inputs + head


@pytest.mark.slow
def test_batch_norm_uses_the_configured_groups() -> None:
    how = Execution(trainer(RESNET).mesh)
    unit = {"kernel": jnp.ones((1, 1, 3, 3)), "gain": jnp.ones(3), "bias": jnp.zeros(3)}
    average = {"mean": jnp.zeros(3), "variance": jnp.ones(3)}
    x_BHWC = np.random.default_rng(0).normal(size=(8, 4, 4, 3)) * np.arange(1, 9)[:, None, None, None]
    x_BHWC = x_BHWC.astype(np.float32)

    def normed(examples: int, part: Any) -> Any:
        network = resnet.Network(Model(family="resnet", norm_examples=examples), how, training=True)
        return network.unit(part, unit, average)

    grouped, saved = normed(4, x_BHWC)
    halves = [normed(0, half) for half in (x_BHWC[:4], x_BHWC[4:])]
    np.testing.assert_allclose(grouped, np.concatenate([half for half, _ in halves]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(saved["variance"], np.mean([made["variance"] for _, made in halves], 0), rtol=1e-5)


def test_a_record_of_an_image_is_its_pixels_and_its_label() -> None:
    made = Model(family="resnet", image=16, classes=1000)
    record = np.frombuffer(synthetic_images.draw(5, 16), np.uint8).copy()
    assert len(record) == records.record(made).length
    record[-2:] = (0x2C, 0x01)
    pixels, label = resnet.images(made, jnp.asarray(record[None]))
    assert label.tolist() == [300]
    np.testing.assert_allclose(pixels[0, 3, 4, 2], (record[(3 * 16 + 4) * 3 + 2] - 103.5) / 57.4, rtol=1e-5)


@pytest.mark.slow
def test_masks_depend_only_on_the_example_and_the_step() -> None:
    made = Model(family="bert", vocab=256, seq_len=400, mask_rate=0.15)
    tokens = jnp.asarray(np.random.default_rng(0).integers(32, 127, (64, 400)), jnp.int32)
    mask_tokens = jax.jit(functools.partial(bert.mask_tokens, made))
    input_BT, place_BG, _ = jax.device_get(mask_tokens(tokens, jnp.int32(3)))
    assert place_BG.shape == (64, 60) and all(len(set(row)) == 60 for row in place_BG.tolist())
    np.testing.assert_array_equal(mask_tokens(tokens[::-1], jnp.int32(3))[0][::-1], input_BT)
    assert (mask_tokens(tokens, jnp.int32(4))[1] != place_BG).any()
    own, new = (np.take_along_axis(np.asarray(x), place_BG, 1) for x in (tokens, input_BT))
    assert (new == 255).mean() == pytest.approx(0.8, abs=0.03)
    assert (new == own).mean() == pytest.approx(0.1, abs=0.03)
    untouched = np.ones_like(tokens, bool)
    np.put_along_axis(untouched, place_BG, False, 1)
    assert (input_BT == tokens)[untouched].all()


@pytest.mark.slow
def test_a_prediction_depends_on_both_sides() -> None:
    made = trainer(BERT)
    params = made.init(np.uint32(0))["params"]
    encode = jax.jit(functools.partial(bert.encode, made.config.model, Execution(made.mesh)))
    before, after = np.array(TEXT[:1, :16]), np.array(TEXT[:1, :16])
    after[0, 9] = 1
    assert (np.abs(np.asarray(encode(params, before) - encode(params, after))).max(axis=(0, 2)) > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [RESNET, BERT], ids=["resnet", "bert"])
def test_a_few_examples_can_be_overfitted(settings: tuple[str, ...]) -> None:
    made = trainer(settings)
    state, blocks = made.init(np.uint32(0)), made.blocks(np.arange(8))
    result = []
    for _ in range(150):
        state, out = made.train()(state, blocks, made.flags)
        result.append(float(out["loss"]))
    assert result[-1] < 0.6 * result[0]
