"""Pooling of regions against a reference in NumPy, as a gather and as products."""

import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from tests.trainer.collectives import collectives
from tests.trainer.models import reference_mask_rcnn as reference
from trainer.config import Model
from trainer.models import region_heads, region_pooling
from trainer.models.resnet import Network
from trainer.parallel.mesh import ALL, sharding
from trainer.parallel.partitioning import Execution

STRIDES, IMAGE, BINS = (4, 8), 160, 2
BOX = st.tuples(*[st.floats(0, IMAGE, width=32)] * 4)


@functools.cache
def pooling(one_hot: bool) -> Any:
    """Return the compiled pooling of three regions, and its gradient."""

    def pooled(features: Any, box_BR4: Any) -> Any:
        return region_pooling.pool(features, STRIDES, box_BR4, BINS, one_hot=one_hot)

    def weighed(features: Any, box_BR4: Any) -> Any:
        x_BRPPC = pooled(features, box_BR4)
        return jnp.sum(x_BRPPC * jnp.arange(x_BRPPC.size).reshape(x_BRPPC.shape)), x_BRPPC

    return jax.jit(jax.grad(weighed, has_aux=True))


@functools.cache
def levels() -> list[Any]:
    random = np.random.default_rng(0)
    return [random.normal(size=(1, IMAGE // stride, IMAGE // stride, 2)).astype(np.float32) for stride in STRIDES]


@settings(max_examples=30, deadline=None)
@given(st.tuples(BOX, BOX, BOX))
def test_regions_of_any_size_are_pooled_as_by_the_reference(corners: Any) -> None:
    box_R4 = np.array([[min(a, c), min(b, d), max(a, c), max(b, d)] for a, b, c, d in corners], np.float32)
    sizes = np.sqrt((box_R4[:, 2:] - box_R4[:, :2]).astype(np.float64).prod(1))
    box_R4[np.abs(sizes - 112) < 1e-2, 2] -= 1  # rounding decides the level of a size on the border of two
    features = levels()
    expected = [reference.pool([level[0].astype(np.float64) for level in features], box, BINS) for box in box_R4]
    gathered, multiplied = (pooling(one_hot)(features, box_R4[None]) for one_hot in (False, True))
    for gradients, pooled in (gathered, multiplied):
        np.testing.assert_allclose(pooled[0], expected, rtol=0, atol=1e-4)
        for own, other in zip(gradients, gathered[0], strict=True):
            np.testing.assert_allclose(own, other, rtol=0, atol=1e-3)


def test_a_region_at_the_border_of_two_levels_is_on_the_higher_one() -> None:
    box_BR4 = jnp.array([[[0, 0, 111.9, 111.9], [0, 0, 112, 112], [0, 0, 5, 5], [0, 0, 9999, 9999]]])
    assert region_pooling.levels(box_BR4, (4, 8, 16)).tolist() == [[0, 1, 0, 2]]


def divided(pooling: str) -> str:
    """Return the compiled box head of 8 regions on two chips, each of which has half of the rows of every level."""
    model = Model(family="mask_rcnn", image=160, blocks="1,1", pyramid=4, mlp=8, classes=3, pooling=pooling)
    execution = Execution(Mesh(np.array(jax.devices()[:2]).reshape(1, 1, 1, 2), ALL))
    params = jax.tree.map(jnp.zeros, region_heads.shapes(model), is_leaf=lambda x: isinstance(x, tuple))
    rows, whole = sharding(execution.mesh, None, "tp"), sharding(execution.mesh)
    features = [jnp.zeros((1, 160 // stride, 160 // stride, 4)) for stride in STRIDES]

    def logits(features: Any, box_BR4: Any) -> Any:
        return region_heads.Heads(Network(model, execution, training=False), params, features).classify(box_BR4)[0]

    program = jax.jit(logits, in_shardings=([rows, rows], whole))
    return str(program.lower(features, jnp.zeros((1, 8, 4))).compile().as_text())


def test_two_chips_of_an_image_gather_its_features_and_each_reads_half_of_the_regions() -> None:
    hlo, cells = divided("gather"), sum((160 // stride) ** 2 for stride in STRIDES)
    assert [one.sizes for one in collectives(hlo) if one.kind == "all-gather"] == [(cells * 4,)]
    shapes = re.findall(r"= f32\[([\d,]+)\]\{\S+ gather\(", hlo)
    read = {math.prod(map(int, shape.split(","))) for shape in shapes}
    assert max(read) == 4 * (7 * 4) ** 2 * 4, "4 of 8 regions, 7 x 4 rows and columns"


def test_two_chips_multiply_their_own_rows_and_exchange_them_for_regions() -> None:
    exchanges = collectives(divided("one_hot"))
    sent = {sum(one.sizes) for one in exchanges if one.kind == "all-to-all"}
    assert sent == {8 * 7 * (160 // stride // 2) * 4 for stride in STRIDES}, "8 regions, 7 columns, half of the rows"
    features = {(160 // stride) ** 2 * 4 for stride in STRIDES}
    assert not features & {sum(one.sizes) for one in exchanges if one.kind == "all-gather"}
