"""Weight-update sharding and accumulation: the same training with less memory per chip, and checkpoints of it."""

# mypy: disallow-untyped-calls=False

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.trainer.checkpoint.stores import Store
from tests.trainer.emulated import Trainer, on
from trainer import config, setup
from trainer.checkpoint import compatibility
from trainer.data import prepare, reader
from trainer.step.compile_cache import CompileCache
from trainer.step.compiler import Compiler
from trainer.step.update_sharding import add_axis
from trainer.storage import open_place

LAMB = ("optim.name=lamb", "optim.lr=0.01")


@pytest.fixture(scope="module")
def sharded() -> Trainer:
    """LAMB on 2 slices of 2 chips, with its state sharded over all of them and batches in two parts."""
    return Trainer(2, 2, 1, *LAMB, "optim.update_axes=fsdp,dp", "optim.grad_accum_steps=2")


@pytest.mark.slow
def test_sharded_updates_train_the_same(sharded: Trainer) -> None:
    np.testing.assert_allclose(sharded.losses(4), Trainer(1, 1, 1, *LAMB).losses(4), atol=1e-5)


@pytest.mark.slow
def test_an_elementwise_update_is_bit_equal() -> None:
    assert Trainer(2, 2, 1, "optim.update_axes=dp").losses(3) == on(2, 2, 1).losses(3)


def test_moments_are_sharded_over_slices_and_parameters_are_not(sharded: Trainer) -> None:
    def parts(tree: Any) -> set[int]:
        return {
            leaf.size // math.prod(leaf.sharding.shard_shape(leaf.shape))
            for leaf in jax.tree.leaves(tree)
            if leaf.size > 1000
        }

    assert (parts(sharded.programs.state["opt"]), parts(sharded.programs.state["params"])) == ({4}, {2})


@pytest.mark.parametrize(
    ("spec", "shape", "axis", "spread"),
    [
        (P(None, "fsdp", "tp"), (3, 8, 8), "dp", P(None, ("fsdp", "dp"), "tp")),  # minor, on the neighbors of fsdp
        (P(None, "fsdp", "tp"), (3, 4, 8), "dp", P(None, "fsdp", ("tp", "dp"))),  # 4 is not divisible by fsdp
        (P(), (3, 3, 16, 64), "fsdp", P(None, None, None, "fsdp")),
        (P(None, ("fsdp", "dp")), (4, 8), "dp", P(None, ("fsdp", "dp"))),
        (P(None), (7,), "dp", P(None)),
    ],
)
def test_the_dimension_of_an_axis(spec: P, shape: tuple[int, ...], axis: str, spread: P) -> None:
    assert add_axis(spec, shape, axis, {"dp": 2, "fsdp": 4, "tp": 2}) == spread


@pytest.mark.slow
def test_a_state_sharded_over_slices_is_restored_bit_exactly(sharded: Trainer, tmp_path: Path) -> None:
    store = Store(tmp_path)
    state = sharded.train()(sharded.init(np.uint32(0)), sharded.blocks(np.arange(8)), sharded.flags)[0]
    assert store.save(1, state) == ""
    compiler = Compiler(CompileCache(tmp_path, None), store.peers)
    restored, _ = store.checkpoints.restore(1, {}, sharded.mesh, sharded.programs.state, compiler)()
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        assert new.sharding.is_equivalent_to(old.sharding, old.ndim)
        for a, b in zip(old.addressable_shards, new.addressable_shards, strict=True):
            assert np.asarray(a.data).tobytes() == np.asarray(b.data).tobytes()


@pytest.mark.parametrize(
    ("saved", "now", "says"),
    [
        ("optim.name=adamw", "optim.name=lamb", "another optimizer (optim.name adamw -> lamb)"),
        ("optim.name=lars", "optim.momentum_form=scaled", "(optim.momentum_form unscaled -> scaled)"),
        ("optim.lr=1", "optim.moment_dtype=bfloat16", "(optim.moment_dtype float32 -> bfloat16)"),
        ("model.mlp=64", "model.mlp=512", "another model (model.mlp 64 -> 512)"),
        ("optim.lr=1", "optim.lr=2", None),
    ],
)
def test_a_checkpoint_of_another_optimizer_is_named_in_one_line(saved: str, now: str, says: str | None) -> None:
    notes = [
        {"model": {"mlp": made.model.mlp}, "optimizer": made.optim.state_notes()}
        for made in (config.load("tiny", [saved]), config.load("tiny", [saved, now]))
    ]
    problem = compatibility.mismatch("/out/checkpoints/3", notes[1], notes[0])
    if says is None:
        assert problem is None
    else:
        assert says in str(problem)
        assert "\n" not in str(problem)


def test_seq_len_may_change_unless_positions_are_parameters() -> None:
    for family, says in (("decoder", ""), ("bert", "another model (model.seq_len 128 -> 256)")):
        was, now = (
            {"model": dataclasses.asdict(made.model), "optimizer": made.optim.state_notes()}
            for made in (
                config.load("tiny", [f"model.family={family}", f"model.seq_len={size}"]) for size in (128, 256)
            )
        )
        assert says in str(compatibility.mismatch("/out/checkpoints/3", now, was) or "")
        assert bool(says) == (compatibility.mismatch("/out/checkpoints/3", now, was) is not None)


def test_the_number_of_heads_of_keys_is_compared_whether_or_not_it_is_set() -> None:
    notes = [
        {"model": dataclasses.asdict(config.load("tiny", [f"model.kv_heads={heads}"]).model), "optimizer": {}}
        for heads in (0, 4, 2)
    ]
    assert compatibility.mismatch("/out/checkpoints/3", notes[1], notes[0]) is None
    assert "model.kv_heads 4 -> 2" in str(compatibility.mismatch("/out/checkpoints/3", notes[2], notes[0]))


def test_a_checkpoint_of_another_tokenizer_is_rejected() -> None:
    mine = {"model": {}, "optimizer": config.load("tiny").optim.state_notes(), "tokenizer": "sentencepiece:12"}
    assert compatibility.mismatch("/out/checkpoints/3", mine, mine) is None
    for notes, was in ((mine | {"tokenizer": "sentencepiece:34"}, "sentencepiece:34"), ({"model": {}}, "bytes")):
        problem = str(compatibility.mismatch("/out/checkpoints/3", mine, notes))
        assert f"checkpoint /out/checkpoints/3 was trained with tokenizer {was}, but the data uses" in problem


def test_a_checkpoint_without_an_optimizer_name_is_from_adamw() -> None:
    mine = {"model": {}, "optimizer": config.load("tiny").optim.state_notes()}
    assert compatibility.mismatch("/out/checkpoints/3", mine, {"model": {}}) is None


def notes_of(text: Path, *settings: str) -> dict[str, Any]:
    """Return the checkpoint notes of a run on this text, as read from a checkpoint."""
    made = config.load("tiny", ["model.seq_len=16", "data.eval_fraction=0.1", *settings])
    tokens = prepare.prepare(str(text), open_place(text.parent / "out"))
    order = setup._order(made, tokens, reader.counts(tokens, made.model), 8)
    read: dict[str, Any] = json.loads(json.dumps(setup._notes(made, tokens, order)))
    return read


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("data.eval_fraction=0.2",), "the number of trained examples 113 -> 100"),
        (("model.seq_len=32",), "model.seq_len 16 -> 32"),
        (("model.packed=true",), "model.packed False -> True"),
    ],
)
def test_a_changed_evaluation_split_is_reported(settings: tuple[str, ...], says: str, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("x" * 2_000)
    was, now = notes_of(tmp_path / "text"), notes_of(tmp_path / "text", *settings)
    assert compatibility.other_examples(was, was) == []
    order, held_out = compatibility.other_examples(now, was)
    assert order.startswith("the order of records has changed: ") and says in order
    assert "may overlap the training data" in held_out
    only = notes_of(tmp_path / "text", "data.seed=5")
    assert compatibility.other_examples(only, was) == ["the order of records has changed: data.seed 0 -> 5"]
    before = {key: value for key, value in was.items() if key not in ("trained", "held_out", "order")}
    assert compatibility.other_examples(was, before) == []
