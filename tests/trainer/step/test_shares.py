"""The halves of a step for elastic slices: gradients of shares of the batch, and the update from their sum."""

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


def _leaves(tree: object) -> list[npt.NDArray[np.float32]]:
    import jax

    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
