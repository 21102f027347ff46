"""A table of embeddings: on a torus, lookups, logits and gradients are those of a table without copies."""

# mypy: disallow-untyped-calls=False

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from tests.trainer.collectives import collectives
from trainer.models.vocabulary import TABLE, Vocabulary
from trainer.parallel.mesh import ALL
from trainer.parallel.partitioning import Execution

V, E, B, T = 32, 16, 8, 4


def gradient(mesh: Mesh, torus: tuple[int, ...]) -> Any:
    """Return the jitted value and gradient of a function of a table's lookups and logits."""
    execution = Execution(mesh, torus=torus)

    def loss(embed_VE: jax.Array, tokens_BT: jax.Array) -> jax.Array:
        table = Vocabulary(execution, embed_VE)
        logits_BTV = table.project(jnp.sin(table.look_up(tokens_BT)))
        return jnp.sum(jax.nn.logsumexp(logits_BTV, axis=-1))

    placed = NamedSharding(mesh, TABLE)
    return jax.jit(jax.value_and_grad(loss), in_shardings=(placed, None), out_shardings=(None, placed))


@pytest.mark.parametrize("tp", [1, 2])
def test_copies_for_every_share_have_the_same_gradient_and_reduce_it_once(tp: int) -> None:
    mesh = Mesh(np.array(jax.devices()[: 4 * tp]).reshape(2, 1, 2, tp), ALL)
    embed_VE = jax.random.normal(jax.random.key(0), (V, E))
    tokens_BT = jax.random.randint(jax.random.key(1), (B, T), 0, V)
    plain, copied = gradient(mesh, ()), gradient(mesh, (2,))
    (value, expected), (other, result) = plain(embed_VE, tokens_BT), copied(embed_VE, tokens_BT)
    np.testing.assert_allclose(other, value, rtol=1e-6)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    program = [
        one for one in collectives(copied.lower(embed_VE, tokens_BT).compile().as_text()) if len(one.groups[0]) > 1
    ]
    scattered = [one for one in program if one.kind == "reduce-scatter" and V * E // tp // 2 in one.sizes]
    assert len(scattered) == 1, "gradients of lookups and logits are added once"
    assert not [one for one in program if one.kind == "all-reduce" and V * E // tp in one.sizes]
