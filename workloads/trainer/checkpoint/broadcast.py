"""Broadcast of a restored state from the chips that read it to all others, over the network instead of storage."""

# mypy: disallow-untyped-calls=False

from collections.abc import Container
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.checkpoint.shards import Placed
from trainer.step.compiler import Compile
from trainer.step.programs import State
from trainer.step.update_sharding import dimension_of, without


def held(state: State | None, abstract: State) -> list[Placed]:
    """Return the shards of each leaf of `state` on this host's devices; empty without a state."""
    if state is None:
        return [{} for _ in jax.tree.leaves(abstract)]
    return [{shard.device: shard.data for shard in x.addressable_shards} for x in jax.tree.leaves(state)]


def assemble(sources: list[Placed], abstract: State) -> State:
    """Return the state assembled from each device's shards."""
    leaves, tree = jax.tree.flatten(abstract)
    made: State = jax.tree.unflatten(
        tree, [_array(leaf, leaf.sharding, have) for leaf, have in zip(leaves, sources, strict=True)]
    )
    return made


def spread(sources: list[Placed], givers: Container[Any], mesh: Mesh, abstract: State, compiler: Compile) -> State:
    """Give every "dp" replica the state of the `givers`: the others contribute zeros to a sum over all.

    `sources` has the giving devices' shards of each leaf on this host. For each place in a replica one device gives, in
    whichever replica. The sum is over the bits as integers, so it is exact for every value, negative zero and NaN
    included. Arrays sharded over "dp" itself (weight-update sharding) go to each replica as its part of the sum.
    """
    if mesh.shape["dp"] == 1:
        return assemble(sources, abstract)
    leaves, tree = jax.tree.flatten(abstract)
    specs = [leaf.sharding.spec for leaf in leaves]
    whole = [without(spec, "dp") for spec in specs]

    def unequal(leaf: jax.ShapeDtypeStruct, spec: P, have: Placed) -> jax.Array:
        """Declare the replicas to be one array although they differ; only `add` may read it."""
        placed = NamedSharding(mesh, spec)
        zeros = np.zeros(placed.shard_shape(leaf.shape), leaf.dtype)
        return _array(
            leaf,
            placed,
            {
                device: have[device] if device in givers else jax.device_put(zeros, device)
                for device in placed.addressable_devices
            },
        )

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
    parts = [unequal(*arguments) for arguments in zip(leaves, whole, sources, strict=True)]
    compiled, _ = compiler("spread", jax.jit(added, donate_argnums=0), parts)
    everywhere: State = jax.tree.unflatten(tree, compiled(parts))
    return everywhere


def _array(leaf: jax.ShapeDtypeStruct, placed: Any, have: Placed) -> jax.Array:
    parts = [have[device] for device in placed.addressable_devices]
    return jax.make_array_from_single_device_arrays(leaf.shape, placed, parts)
