"""A nonfinite value in a state is found before a save, in any array and on any chip."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer.emulated import Trainer, on
from trainer.checkpoint.finite_check import Finite


@functools.cache
def look(dp: int, fsdp: int, tp: int) -> tuple[Trainer, Finite, Any]:
    trainer = on(dp, fsdp, tp)
    finite = Finite(trainer.mesh, trainer.programs.state)
    finite.compile(lambda name, program, state: (program.lower(state).compile(), False))
    return trainer, finite, trainer.init(np.uint32(0))


def spoilt(state: Any, wanted: str, value: float, at: int) -> Any:
    """Return the state with one changed value in one array."""

    def change(path: Any, leaf: Any) -> Any:
        if jax.tree_util.keystr(path, simple=True, separator=".") != wanted:
            return leaf
        content = np.array(leaf)
        content.reshape(-1)[at] = value
        return jax.device_put(content, leaf.sharding)

    return jax.tree_util.tree_map_with_path(change, state)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, -1])
def test_one_nonfinite_value_names_its_array(value: float, at: int) -> None:
    _, finite, state = look(2, 2, 2)
    assert not np.asarray(finite.begin(state)).any()
    names = [name for name in finite.names if name in ("params.embed", "params.final_norm") or ".mu.embed" in name]
    assert len(names) == 3
    for name in names:
        result = np.asarray(finite.begin(spoilt(state, name, value, at)))
        assert [n for n, bad in zip(finite.names, result, strict=True) if bad] == [name]


def test_every_array_of_floats_is_checked() -> None:
    trainer, finite, state = look(2, 2, 2)
    floats = [leaf for leaf in jax.tree.leaves(trainer.programs.state) if leaf.dtype.kind == "f"]
    assert len(finite.names) == len(floats) < len(jax.tree.leaves(state))
