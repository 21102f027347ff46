"""Halos of spatial partitioning in the compiled step, next to the border rows that chips need of each other."""

# mypy: disallow-untyped-calls=False

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from tests.trainer.emulated import Trainer
from trainer.estimate.hlo_transfers import slice_collectives
from trainer.models import registry
from trainer.models.family import Context
from trainer.ssd_levels import MIDDLE, levels

BATCH, CHIPS, FLOAT = 8, 2, 4
RESNET = ("model.family=resnet", "model.image=32", "model.classes=4", "model.blocks=1,2", "optim.name=lars")
SSD = ("model.family=ssd", "model.image=64", "model.classes=3", "model.blocks=1,1", "model.max_boxes=5")
COMMON = ("model.width=4", "model.compute_dtype=float32")


class Window(NamedTuple):
    """A convolution or a pooling over the height of images, whose rows are divided between two chips."""

    times: int  # in a pass
    size: int
    stride: int
    edge: int  # rows of zeros above
    before: tuple[int, ...]  # [B, H, W, C] of the input
    after: tuple[int, ...]

    @property
    def sent_forward(self) -> int:
        """Bytes of the input's rows that the two chips need of each other."""
        split, rows = (-(-shape[1] // CHIPS) for shape in (self.before, self.after))
        first, last = rows * self.stride - self.edge, (rows - 1) * self.stride - self.edge + self.size
        return self._bytes(max(0, last - split) + max(0, split - first), self.before)

    @property
    def sent_backward(self) -> int:
        """Bytes of the rows of the output's gradient that they need for the input's gradient."""
        split, rows = (-(-shape[1] // CHIPS) for shape in (self.before, self.after))
        last = (split - 1 + self.edge) // self.stride
        first = -(-(split + self.edge - self.size + 1) // self.stride)
        return self._bytes(max(0, last - rows + 1) + max(0, rows - first), self.after)

    def _bytes(self, rows: int, shape: tuple[int, ...]) -> int:
        return self.times * rows * shape[0] * shape[2] * shape[3] * FLOAT


def windows(jaxpr: Any, times: int = 1) -> Iterator[Window]:
    """Return the windows of a program that cover several rows, in their order."""
    for equation in jaxpr.eqns:
        params = equation.params
        if equation.primitive.name == "scan":
            yield from windows(params["jaxpr"].jaxpr, times * params["length"])
        elif "jaxpr" in params:
            yield from windows(getattr(params["jaxpr"], "jaxpr", params["jaxpr"]), times)
        is_convolution = equation.primitive.name == "conv_general_dilated"
        if is_convolution or equation.primitive.name == "reduce_window_max":
            size = equation.invars[1].aval.shape[0] if is_convolution else params["window_dimensions"][1]
            stride = params["window_strides"][0 if is_convolution else 1]
            edge = params["padding"][0 if is_convolution else 1][0]
            if size > 1:
                shapes = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
                yield Window(times, size, stride, edge, *shapes)


def partitioned(trainer: Trainer, least_rows: int) -> list[Window]:
    """Return the windows of the forward pass whose input and output are divided."""
    model, record_BS = trainer.config.model, jnp.zeros((BATCH, trainer.record.length), jnp.uint8)
    own = registry.family(model)

    def loss(params: Any) -> Any:
        context = Context(own.averages(model), jnp.int32(0), None)
        return own.sums(model, trainer.how, params, context, record_BS, jnp.ones(BATCH)).loss

    made = jax.make_jaxpr(loss)(trainer.programs.state["params"])
    return [window for window in windows(made.jaxpr) if min(window.before[1], window.after[1]) >= least_rows]


def sent(trainer: Trainer, kind: str) -> int:
    """Return the bytes that both chips together send in a step, in collectives of this kind."""
    return sum(one.bytes for one in slice_collectives(trainer.train().as_text()) if one.kind == kind)


def halos(sharded: list[Window]) -> int:
    """Return the bytes of the halos of a step; the images, which the first window reads, need no gradient."""
    return sum(window.sent_forward for window in sharded) + sum(window.sent_backward for window in sharded[1:])


def records(trainer: Trainer) -> int:
    """Return the bytes of records and weights, of which each chip reads a half and gathers the other one."""
    return BATCH * (trainer.record.length + FLOAT) // CHIPS


def test_border_rows_of_a_window_are_those_that_the_other_chip_needs() -> None:
    shapes = (1, 16, 1, 1), (1, 8, 1, 1)
    first = Window(1, 7, 2, 3, *shapes)
    assert (first.sent_forward, first.sent_backward) == (5 * FLOAT, 3 * FLOAT)
    assert Window(1, 3, 1, 1, shapes[0], shapes[0]).sent_backward == 2 * FLOAT


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_resnet_exchanges_border_rows_and_gathers_only_its_input() -> None:
    """A convolution's input rows are sent again in the backward pass, for the gradient of its weights."""
    trainer = Trainer(1, 1, CHIPS, *RESNET, *COMMON)
    sharded = partitioned(trainer, least_rows=CHIPS)
    assert [(window.size, window.stride) for window in sharded] == [(7, 2), (3, 2), (3, 1), (3, 2), (3, 1)]
    assert halos(sharded) <= sent(trainer, "collective-permute") <= 2 * halos(sharded)
    assert sent(trainer, "all-gather") == records(trainer)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ssd_exchanges_border_rows_and_gathers_its_input_and_predictions() -> None:
    """Gathered are also the first output that is not divided, and the gradient of its layer's input."""
    trainer = Trainer(1, 1, CHIPS, *SSD, *COMMON)
    sharded, model = partitioned(trainer, least_rows=4 * CHIPS), trainer.config.model
    assert halos(sharded) <= sent(trainer, "collective-permute") <= 2 * halos(sharded)
    divided, whole = levels(model)
    assert whole.grid < 4 * CHIPS <= divided.grid
    numbers = divided.grid**2 * divided.shapes * (4 + model.classes + 1)
    numbers += whole.grid**2 * whole.channels + divided.grid**2 * MIDDLE[0] * model.width
    assert sent(trainer, "all-gather") <= records(trainer) + BATCH * numbers * FLOAT // CHIPS
