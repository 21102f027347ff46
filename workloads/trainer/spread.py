"""Send a state from the chips that read it to all the others, over the network instead of the store."""

# mypy: disallow-untyped-calls=False

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.compiling import Compiler
from trainer.step import State
from trainer.update_sharding import dimension_of, without


def spread(state: State | None, mesh: Mesh, abstract: State, compiler: Compiler) -> State:
    """Give every "dp" replica the state that the first one has: others bring zeros, and all are added.

    The sum is over the bits as integers, so it is exact for every value, negative zero and NaN included. What is
    spread over "dp" itself (weight-update sharding) goes to each replica as its part of the sum.
    """
    if mesh.shape["dp"] == 1:
        assert state is not None
        placed: State = jax.tree.map(lambda x, leaf: jax.device_put(x, leaf.sharding), state, abstract)
        return placed
    first = set(mesh.devices[0].flat)
    leaves, tree = jax.tree.flatten(abstract)
    sources = [None] * len(leaves) if state is None else jax.tree.leaves(state)

    specs = [leaf.sharding.spec for leaf in leaves]
    whole = [without(spec, "dp") for spec in specs]

    def unequal(leaf: jax.ShapeDtypeStruct, spec: P, source: jax.Array | None) -> jax.Array:
        """Declare the replicas to be one array although they differ; only `add` may look at it."""
        placed = NamedSharding(mesh, spec)
        have = {} if source is None else {shard.device: shard.data for shard in source.addressable_shards}
        zeros = np.zeros(placed.shard_shape(leaf.shape), leaf.dtype)
        pieces = [
            have[device] if device in first else jax.device_put(zeros, device) for device in placed.addressable_devices
        ]
        return jax.make_array_from_single_device_arrays(leaf.shape, placed, pieces)

    def add(x: jax.Array, spec: P) -> jax.Array:
        bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
        dim = dimension_of(spec, "dp")
        if dim is None:
            return jax.lax.bitcast_convert_type(jax.lax.psum(bits, "dp"), x.dtype)
        part = jax.lax.psum_scatter(bits, "dp", scatter_dimension=dim, tiled=True)
        return jax.lax.bitcast_convert_type(part, x.dtype)

    def add_all(xs: list[jax.Array]) -> list[jax.Array]:
        return [add(x, spec) for x, spec in zip(xs, specs, strict=True)]

    added = jax.shard_map(add_all, mesh=mesh, in_specs=(whole,), out_specs=specs, check_vma=False)
    parts = [unequal(*each) for each in zip(leaves, whole, sources, strict=True)]
    compiled, _ = compiler("spread", jax.jit(added, donate_argnums=0), parts)
    everywhere: State = jax.tree.unflatten(tree, compiled(parts))
    return everywhere
