"""Dropout: masks of the configured rate that depend on the example, the step and the place alone."""

# mypy: disallow-untyped-calls=False

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from tests.trainer import reference_translation
from tests.trainer.emulated import Trainer, losses_of_shares, pairs, same_gradients
from tests.trainer.models import reference_bert
from trainer import config
from trainer.data.records import END, PADDING, record
from trainer.estimate import bert as bert_estimate
from trainer.estimate import memory, translation
from trainer.models import bert, gnmt, registry, transformer
from trainer.models import pairs as pair_records
from trainer.models.dropout import Dropout, Site, example_keys
from trainer.models.family import Context
from trainer.parallel import layout

RATE = 0.2
DROPOUT = f"model.dropout={RATE}"
BERT = ("model.family=bert", DROPOUT)
TRANSFORMER = ("model.family=transformer", DROPOUT)
GNMT = ("model.family=gnmt", "model.layers=3", DROPOUT)
Floats = npt.NDArray[np.float64]


@functools.cache
def trainer(settings: tuple[str, ...], dp: int = 1, fsdp: int = 1, tp: int = 1) -> Trainer:
    return Trainer(dp, fsdp, tp, *settings)


@functools.cache
def dropout(seed: int = 0, step: int = 0, first: int = 0, examples: int = 8) -> Dropout:
    keys = example_keys(seed, jnp.int32(step), first, examples)
    return Dropout(trainer(BERT).how, RATE, keys)


def mask(own: Dropout, site: Site, *shape: int) -> Floats:
    """Return what dropout leaves of ones [B, T, E]."""
    return np.asarray(jax.jit(lambda x: own(site, x, None, None))(jnp.ones(shape)))


def test_a_fraction_is_zero_and_the_rest_is_scaled_so_that_the_mean_is_kept() -> None:
    kept = mask(dropout(), Site.MLP, 8, 64, 96)
    assert set(np.unique(kept).tolist()) == {0.0, float(np.float32(1 / (1 - RATE)))}
    deviation = np.sqrt(RATE * (1 - RATE) / kept.size)
    assert abs((kept == 0).mean() - RATE) < 4 * deviation
    for axis in ((1, 2), (0, 2), (0, 1)):  # of each example, position and channel
        own = np.sqrt(RATE * (1 - RATE) * (kept.size // np.prod(kept.shape) or 1) / (kept[0].size / 96))
        assert np.abs((kept == 0).mean(axis) - RATE).max() < 6 * own


def test_masks_differ_by_seed_step_example_layer_and_site() -> None:
    masks = [
        mask(dropout(), Site.MLP, 8, 16, 32),
        mask(dropout(seed=1), Site.MLP, 8, 16, 32),
        mask(dropout(step=1), Site.MLP, 8, 16, 32),
        mask(dropout(first=8), Site.MLP, 8, 16, 32),
        mask(dropout().part(0), Site.MLP, 8, 16, 32),
        mask(dropout().part(1), Site.MLP, 8, 16, 32),
        mask(dropout(), Site.ATTENTION, 8, 16, 32),
    ]
    rows = np.concatenate(masks).reshape(7 * 8 * 16, 32)
    assert len(np.unique(rows, axis=0)) > 0.9 * len(rows)


def test_masks_do_not_depend_on_the_other_examples_or_on_padding() -> None:
    whole = mask(dropout(), Site.INPUT, 8, 16, 32)
    np.testing.assert_array_equal(mask(dropout(first=4, examples=4), Site.INPUT, 4, 16, 32), whole[4:])
    np.testing.assert_array_equal(mask(dropout(), Site.INPUT, 8, 6, 32), whole[:, :6])
    drop = jax.jit(dropout().of_weights(Site.ATTENTION_WEIGHTS))
    weights = np.asarray(drop(jnp.ones((8, 2, 16, 16)), jnp.arange(16)))
    np.testing.assert_array_equal(drop(jnp.ones((8, 2, 4, 16)), jnp.arange(4, 8)), weights[:, :, 4:8])  # a chunk
    np.testing.assert_array_equal(drop(jnp.ones((8, 2, 6, 6)), jnp.arange(6)), weights[:, :, :6, :6])


@functools.partial(jax.jit, static_argnums=(0, 1))
def kept_of(site: Site, shape: tuple[int, ...], keys: Any, parts: list[Any]) -> Any:
    """Return what is left of ones at a site of a part of a part of the model."""
    own = functools.reduce(lambda own, part: own.part(part), parts, Dropout(trainer(BERT).how, RATE, keys))
    if site.name.endswith("WEIGHTS"):
        return own.of_weights(site)(jnp.ones(shape), jnp.arange(shape[2]))
    return own(site, jnp.ones(shape), None, None)


def drop_like(keys: Any, example: int) -> Any:
    """Return the dropping of one example for a reference: `place` is parts of the model, then the site."""

    def drop(place: str, activations: Floats) -> Floats:
        *parts, site = place.split()
        numbers = [int({"encoder": "0", "decoder": "1"}.get(part, part)) for part in parts]
        kept = kept_of(Site[site.upper()], (len(keys), *activations.shape), keys, numbers)
        return activations * np.asarray(kept[example], np.float64)

    return drop


def random_params(settings: tuple[str, ...]) -> Any:
    model = trainer(settings).config.model
    initial = jax.jit(lambda key: registry.family(model).init(model, key))(jax.random.key(3))
    return jax.tree.map(lambda w: w * 1.5 + 0.02, jax.device_get(initial))


@pytest.mark.slow
def test_outputs_of_bert_equal_the_reference_with_the_same_masks() -> None:
    settings = (*BERT, "model.next_sentence=true")
    model, how, params = trainer(settings).config.model, trainer(settings).how, random_params(settings)
    tokens = np.random.default_rng(0).integers(0, 255, (2, 16))
    segments, keys = np.arange(16)[None] // 9 * np.ones((2, 1), int), dropout(examples=2).key_B

    @jax.jit
    def encode(params: Any) -> Any:
        own = Dropout(how, RATE, keys)
        return bert.encode(model, how, params, jnp.asarray(tokens), segment_BT=jnp.asarray(segments), dropout=own)

    outputs = np.asarray(encode(params))
    for n in range(2):
        expected = reference_bert.encode(params, tokens[n], segments[n], 16, drop_like(keys, n))
        np.testing.assert_allclose(outputs[n], expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [TRANSFORMER, GNMT], ids=["transformer", "gnmt"])
def test_logits_equal_the_reference_with_the_same_masks(settings: tuple[str, ...]) -> None:
    model, params = trainer(settings).config.model, random_params(settings)
    records, keys = jnp.asarray(pairs(16)(np.arange(2))), dropout(examples=2).key_B
    is_gnmt = model.family == "gnmt"

    @jax.jit
    def run(params: Any) -> Any:
        source_BT, target_BT = pair_records.halves(records)
        made = (gnmt if is_gnmt else transformer).Network(model, trainer(settings).how, params, keys)
        return made.project(made.decode(made.encode(source_BT), source_BT, pair_records.shifted(target_BT)))

    logits_BTV = np.asarray(run(params))
    logits_of = reference_translation.gnmt_logits if is_gnmt else reference_translation.transformer_logits
    for n, row in enumerate(np.asarray(records)):
        source, target = ([int(number) for number in half if number != PADDING] for half in np.split(row, 2))
        expected = logits_of(params, source, [END, *target[:-1]], drop_like(keys, n))
        np.testing.assert_allclose(logits_BTV[n, : len(target)], expected, atol=1e-4)


EXPLICIT = ("mesh.grad_reduction=explicit", "mesh.grad_reduction_dtype=float32")
SPREAD = [
    pytest.param(BERT, (2, 2, 1), ("optim.grad_accum_steps=2",), id="bert-accumulated", marks=pytest.mark.slow),
    pytest.param(BERT, (1, 2, 2), ("mesh.stages=2", "mesh.microbatches=2"), id="bert-pipeline", marks=pytest.mark.slow),
    pytest.param(
        TRANSFORMER,
        (2, 2, 1),
        ("model.batch_lengths=8", "optim.grad_accum_steps=2", "model.attention_chunk=4", *EXPLICIT),
        id="transformer-explicit",
        marks=[pytest.mark.slow, pytest.mark.extended],
    ),
    pytest.param(GNMT, (1, 2, 2), (), id="gnmt-fsdp2-tp2", marks=pytest.mark.slow),
    pytest.param((DROPOUT,), (2, 1, 2), ("model.remat=full",), id="decoder-dp2-tp2", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("settings", "mesh", "others"), SPREAD)
def test_losses_are_the_same_on_any_mesh(
    settings: tuple[str, ...], mesh: tuple[int, int, int], others: tuple[str, ...]
) -> None:
    spread = trainer((*settings, *others), *mesh)
    np.testing.assert_allclose(spread.losses(3), trainer(settings).losses(3), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.extended
def test_recomputed_masks_are_those_of_the_forward_pass() -> None:
    for settings in (BERT, TRANSFORMER):
        same_gradients(trainer((*settings, "model.remat=full")), trainer((*settings, "model.remat=none")))


@pytest.mark.slow
def test_the_sum_of_two_shares_is_the_step_of_the_whole_batch() -> None:
    half = Trainer(1, 2, 1, *BERT, "data.global_batch=4", replicas=2)
    np.testing.assert_allclose(losses_of_shares(half, 2, 3), trainer(BERT).losses(3), rtol=1e-5)


@pytest.mark.slow
def test_a_run_that_resumes_has_the_same_losses_bit_by_bit() -> None:
    made = trainer(BERT)
    state, losses = made.init(np.uint32(0)), []
    for step in range(4):
        state, out = made.train()(state, made.blocks(step * made.batch + np.arange(made.batch)), made.flags)
        losses.append(float(out["loss"]).hex())
        state = jax.tree.map(lambda x, form: jax.device_put(np.asarray(x), form.sharding), state, made.programs.state)
    assert losses == [loss.hex() for loss in made.losses(4)]


@pytest.mark.slow
def test_chips_draw_their_own_masks_and_send_none() -> None:
    """The step has as many collectives as without dropout, and its random numbers are those of a chip's activations."""
    spread, plain = trainer(BERT, 2, 2, 2).train().as_text(), trainer(BERT[:1], 2, 2, 2).train().as_text()
    collectives = re.compile(r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)\(")
    assert sorted(collectives.findall(spread)) == sorted(collectives.findall(plain))
    sizes = [np.prod([int(n) for n in shape.split(",")]) for shape in re.findall(r"u32\[([0-9,]+)\]", spread)]
    model, batch = trainer(BERT).config.model, trainer(BERT).batch
    assert max(sizes) == batch / 4 * model.seq_len / 2 * max(model.embed, model.heads * model.seq_len)


def test_evaluations_drop_nothing() -> None:
    texts = []
    for settings in (BERT, BERT[:1]):
        programs = trainer(settings).programs
        texts.append(programs.evaluate.lower(programs.state["params"], programs.blocks, None).as_text())
    assert texts[0] == texts[1]


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("family", ["decoder", "bert", "transformer", "gnmt"])
def test_estimates_count_the_masks_that_are_kept(family: str, remat: str) -> None:
    """Next to the masks of the embeddings, which are few."""
    asked = config.load("tiny", [f"model.family={family}", f"model.remat={remat}", "data.global_batch=8", DROPOUT])
    plain = dataclasses.replace(asked, model=dataclasses.replace(asked.model, dropout=0.0))
    memory_of = {"decoder": memory.memory, "bert": bert_estimate.memory}.get(family, translation.memory)
    sizes = layout.layout(asked, layout.Chips(1, 1, 1))
    estimated = memory_of(asked, sizes).saved - memory_of(plain, sizes).saved
    tokens = 8 * asked.model.seq_len
    inputs = tokens * asked.model.embed * {"gnmt": 0, "transformer": 2}.get(family, 1)
    assert kept_booleans(asked) - kept_booleans(plain) == estimated + inputs


def kept_booleans(asked: config.Config) -> int:
    """Return the number of booleans that the forward pass keeps for the backward pass."""
    model, family = asked.model, registry.family(asked.model)
    params = jax.eval_shape(lambda: family.init(model, jax.random.key(0)))
    record_BS = jax.ShapeDtypeStruct((8, record(model).length), jnp.int32)

    def residuals(params: Any, record_BS: Any) -> Any:
        keys = example_keys(0, jnp.int32(0), 0, 8) if model.dropout else None
        of = functools.partial(family.sums, model, trainer(BERT).how)
        context = Context({}, jnp.int32(0), None, keys)
        return jax.vjp(lambda params: of(params, context, record_BS, jnp.ones(8)).loss, params)[1]

    leaves = jax.tree.leaves(jax.eval_shape(residuals, params, record_BS))
    return sum(leaf.size for leaf in leaves if leaf.dtype == bool)


@pytest.mark.parametrize("rate", ["-0.1", "1", "1.5", ".nan", ".inf"])
def test_other_rates_are_refused(rate: str) -> None:
    problems = list(layout.range_problems(config.load("bert-tiny", [f"model.dropout={rate}"])))
    assert [problem.message for problem in problems] == [f"model.dropout = {float(rate.strip('.'))} is out of range"]


@pytest.mark.parametrize("name", ["resnet-tiny", "ssd-tiny", "mask-rcnn-tiny", "dlrm-tiny"])
def test_models_without_dropout_refuse_it(name: str) -> None:
    (problem,) = layout.range_problems(config.load(name, ["model.dropout=0.1"]))
    family = config.load(name).model.family
    assert problem.message == f"model.dropout = 0.1 is not supported by {family}"
