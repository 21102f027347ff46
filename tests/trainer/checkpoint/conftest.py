"""A trainer on two slices, and its state after a step."""

from typing import Any

import numpy as np
import pytest

from tests.trainer.emulated import Trainer, on


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return on(2, 2, 2)


@pytest.fixture(scope="module")
def state(trainer: Trainer) -> Any:
    state = trainer.init(np.uint32(0))
    return trainer.train()(state, trainer.blocks(np.arange(8)), trainer.flags)[0]
