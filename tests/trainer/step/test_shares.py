"""The halves of a step for elastic slices: gradients of shares of the batch, and the update from their sum."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.trainer.emulated import Trainer, losses_of_shares, on

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("mesh", "settings"),
    [((1, 4, 2), []), ((2, 2, 1), ["optim.update_axes=fsdp,dp"]), ((1, 2, 1), ["optim.grad_accum_steps=2"])],
)
def test_the_sum_of_two_shares_is_the_step_of_the_whole_batch(mesh: tuple[int, int, int], settings: list[str]) -> None:
    half = Trainer(*mesh, "data.global_batch=4", *settings, replicas=2)
    np.testing.assert_allclose(losses_of_shares(half, 2, 4), on(1, 1, 1).losses(4), atol=1e-5)


def test_averages_are_the_mean_of_those_of_the_shares() -> None:
    resnet = ("model.family=resnet", "model.image=8", "model.classes=4", "model.width=8", "model.blocks=1,1")
    sharded = Trainer(1, 2, 1, *resnet, "data.global_batch=4", replicas=2)
    first, second = (
        np.asarray(sharded.programs.shares.share(sharded.init(np.uint32(0)), sharded.blocks(ids), np.uint32(0))[0])
        for ids in (np.arange(4), np.arange(4, 8))
    )
    averages = []
    for flat in (first + first, first + second, second + second):
        state, _ = sharded.programs.shares.update(sharded.init(np.uint32(0)), flat, np.float32(8.0), np.float32(8.0))
        averages.append(np.concatenate([np.ravel(leaf) for leaf in _leaves(state["averages"])]))
    np.testing.assert_allclose((averages[0] + averages[2]) / 2, averages[1], rtol=1e-5)


def test_averages_keep_their_precision_if_gradients_are_sent_in_bfloat16() -> None:
    resnet = ("model.family=resnet", "model.image=8", "model.classes=4", "model.width=8", "model.blocks=1,1")
    explicit = (*resnet, "data.global_batch=4", "mesh.grad_reduction=explicit")
    averages = []
    for dtype in ("float32", "bfloat16"):
        made = Trainer(1, 2, 1, *explicit, f"mesh.grad_reduction_dtype={dtype}", replicas=2)
        flats = [
            np.asarray(made.programs.shares.share(_settled(made), made.blocks(ids), np.uint32(0))[0])
            for ids in (np.arange(4), np.arange(4, 8))
        ]
        state, _ = made.programs.shares.update(_settled(made), sum(flats), np.float32(8.0), np.float32(8.0))
        averages.append(np.concatenate([np.ravel(leaf) for leaf in _leaves(state["averages"])]))
    before = np.concatenate([np.ravel(leaf) for leaf in _leaves(_settled(made)["averages"])])
    change, error = np.abs(averages[0] - before), np.abs(averages[1] - averages[0])
    assert change.min() > 0 and (error <= 0.01 * change + 1e-6).all()


def _settled(made: Trainer) -> Any:
    """Return a fresh state whose averages have changed for some time, so that they are no powers of two."""
    import jax

    state = made.init(np.uint32(0))
    averages = jax.tree.map(lambda x: jax.device_put(np.asarray(x) + np.float32(7.77), x.sharding), state["averages"])
    return state | {"averages": averages}


def _leaves(tree: object) -> list[npt.NDArray[np.float32]]:
    import jax

    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
