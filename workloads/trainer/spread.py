"""Send a state from the chips that read it to all the others, over the network instead of the store."""

# mypy: disallow-untyped-calls=False

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from trainer.compiling import Compiler
from trainer.step import State


def spread(state: State | None, mesh: Mesh, abstract: State, compiler: Compiler) -> State:
    """Give every "dp" replica the state that the first one has: others bring zeros, and all are added.

    The sum is over the bits as integers, so it is exact for every value, negative zero and NaN included.
    """
    if mesh.shape["dp"] == 1:
        assert state is not None
        placed: State = jax.tree.map(lambda x, leaf: jax.device_put(x, leaf.sharding), state, abstract)
        return placed
    first = set(mesh.devices[0].flat)
    leaves, tree = jax.tree.flatten(abstract)
    sources = [None] * len(leaves) if state is None else jax.tree.leaves(state)

    def unequal(leaf: jax.ShapeDtypeStruct, source: jax.Array | None) -> jax.Array:
        """Declare the replicas to be one array although they differ; only `add` may look at it."""
        have = {} if source is None else {shard.device: shard.data for shard in source.addressable_shards}
        zeros = np.zeros(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)
        pieces = [
            have[device] if device in first else jax.device_put(zeros, device)
            for device in leaf.sharding.addressable_devices
        ]
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, pieces)

    def add(x: jax.Array) -> jax.Array:
        bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
        return jax.lax.bitcast_convert_type(jax.lax.psum(bits, "dp"), x.dtype)

    specs = [leaf.sharding.spec for leaf in leaves]
    add_all = jax.jit(
        jax.shard_map(lambda xs: [add(x) for x in xs], mesh=mesh, in_specs=(specs,), out_specs=specs, check_vma=False),
        donate_argnums=0,
    )
    parts = [unequal(leaf, source) for leaf, source in zip(leaves, sources, strict=True)]
    compiled, _ = compiler("spread", add_all, parts)
    whole: State = jax.tree.unflatten(tree, compiled(parts))
    return whole
