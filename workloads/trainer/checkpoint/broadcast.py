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
from trainer.step.update_sharding import dimension_of, without_axis


def local_shards(state: State | None, abstract: State) -> list[Placed]:
    """Return the shards of each leaf of `state` on this host's devices; empty without a state."""
    if state is None:
        return [{} for _ in jax.tree.leaves(abstract)]
    return [{shard.device: shard.data for shard in x.addressable_shards} for x in jax.tree.leaves(state)]


def assemble(shards: list[Placed], abstract: State) -> State:
    """Return the state assembled from each leaf's shards by device."""
    leaves, tree = jax.tree.flatten(abstract)
    state: State = jax.tree.unflatten(
        tree,
        [_array(leaf, leaf.sharding, shards_by_device) for leaf, shards_by_device in zip(leaves, shards, strict=True)],
    )
    return state


def broadcast(
    shards: list[Placed], source_devices: Container[Any], mesh: Mesh, abstract: State, compiler: Compile
) -> State:
    """Return the state with every "dp" replica equal to the shards of `source_devices`.

    The broadcast is a sum over "dp" to which all other devices contribute zeros. `shards` holds the source devices'
    shards of each leaf on this host. For each position in a replica exactly one replica's device is a source. The sum
    is over the bits as integers, so it is exact for every value, including negative zero and NaN. Of arrays sharded
    over "dp" itself (weight-update sharding) each replica receives its part of the sum.
    """
    if mesh.shape["dp"] == 1:
        return assemble(shards, abstract)
    leaves, tree = jax.tree.flatten(abstract)
    specs = [leaf.sharding.spec for leaf in leaves]
    full_specs = [without_axis(spec, "dp") for spec in specs]

    def combine_unequal(leaf: jax.ShapeDtypeStruct, spec: P, shards_by_device: Placed) -> jax.Array:
        """Return an array whose replicas differ, which only `add` may read."""
        placed = NamedSharding(mesh, spec)
        zeros = np.zeros(placed.shard_shape(leaf.shape), leaf.dtype)
        return _array(
            leaf,
            placed,
            {
                device: shards_by_device[device] if device in source_devices else jax.device_put(zeros, device)
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

    added = jax.shard_map(add_all, mesh=mesh, in_specs=(full_specs,), out_specs=specs, check_vma=False)
    parts = [combine_unequal(*arguments) for arguments in zip(leaves, full_specs, shards, strict=True)]
    compiled, _ = compiler("spread", jax.jit(added, donate_argnums=0), parts)
    state: State = jax.tree.unflatten(tree, compiled(parts))
    return state


def _array(leaf: jax.ShapeDtypeStruct, placed: Any, shards_by_device: Placed) -> jax.Array:
    parts = [shards_by_device[device] for device in placed.addressable_devices]
    return jax.make_array_from_single_device_arrays(leaf.shape, placed, parts)
