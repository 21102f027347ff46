"""A host's part of a state as plain files: one per array with all its pieces, and a manifest with checksums.

A piece is a chip's shard of an array. Chips of a host that hold the same shard share one piece.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from trainer.checkpoint.stores import manifest
from trainer.errors import StorageError
from trainer.step.programs import State

Index = tuple[tuple[int, int], ...]  # the first element and the one after the last, of every dimension
Placed = dict[Any, jax.Array]  # device -> its shard of an array
_ARRAYS = "arrays"  # the note that lists the pieces in the files


@dataclasses.dataclass(frozen=True, slots=True)
class Pieces:
    """This host's pieces of one array."""

    shape: tuple[int, ...]  # of the whole array
    dtype: str
    contents: dict[Index, npt.NDArray[Any]]


def names(state: State) -> list[str]:
    """Return a name for each leaf of a state, such as params.embed, which is also its file's name."""
    return [
        jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree_util.tree_leaves_with_path(state)
    ]


def copy_pieces(state: State) -> dict[str, Pieces]:
    """Copy this host's pieces of a state off its chips, so that the state may be donated."""
    leaves = jax.tree.leaves(state)
    shards_by_leaf = [_unique_shards(leaf) for leaf in leaves]
    for shards in shards_by_leaf:  # start all transfers before waiting for the first
        for data in shards.values():
            data.copy_to_host_async()
    pieces = {}
    for name, leaf, shards in zip(names(state), leaves, shards_by_leaf, strict=True):
        contents = {index: _host_copy(data) for index, data in shards.items()}
        pieces[name] = Pieces(leaf.shape, leaf.dtype.name, contents)
    return pieces


def size(pieces: Mapping[str, Pieces]) -> int:
    """Return the bytes of all pieces."""
    return sum(content.nbytes for parts in pieces.values() for content in parts.contents.values())


def write(folder: Path, pieces: Mapping[str, Pieces], notes: dict[str, Any]) -> None:
    """Write the pieces, then the manifest. Checksums are computed from the data in memory.

    Nothing is synced to the disk; after a power failure, checksums detect what was lost.
    """
    folder.mkdir(parents=True)
    sums: manifest.Sums = {}
    for name, parts in pieces.items():
        crc = total = 0
        with (folder / name).open("wb") as file:
            for content in parts.contents.values():
                data = np.ascontiguousarray(content).reshape(-1).view(np.uint8).data
                file.write(data)
                crc, total = zlib.crc32(data, crc), total + data.nbytes
        sums[name] = (total, crc)
    arrays = {
        name: {"shape": parts.shape, "dtype": parts.dtype, "pieces": list(parts.contents)}
        for name, parts in pieces.items()
    }
    (folder / manifest.MANIFEST).write_bytes(manifest.manifest(sums, notes | {_ARRAYS: arrays}))


def covers(notes: dict[str, Any], abstract: State) -> bool:
    """Return whether files with these notes have every piece that this host's chips hold of such a state."""
    try:
        return all(
            _has_pieces(notes[_ARRAYS][name], leaf)
            for name, leaf in zip(names(abstract), jax.tree.leaves(abstract), strict=True)
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):  # of another program
        return False


def _has_pieces(entry: dict[str, Any], leaf: jax.ShapeDtypeStruct) -> bool:
    """Return whether a file with this entry has every piece of an array that this host's chips hold."""
    if (tuple(entry["shape"]), entry["dtype"]) != (leaf.shape, leaf.dtype.name):
        return False
    pieces = [_index(piece) for piece in entry["pieces"]]
    are_parts = all(0 <= first <= end for piece in pieces for first, end in piece)
    return are_parts and set(_indices(leaf).values()) <= set(pieces)


def read(folder: Path, abstract: State) -> list[Placed]:
    """Return this host's shards of each leaf of a state, read from files that cover them.

    Raises StorageError if a file has changed since it was written.
    """
    content = (folder / manifest.MANIFEST).read_bytes()
    files, arrays = manifest.read_manifest(content) or {}, manifest.notes(content)[_ARRAYS]
    placed = []
    for name, leaf in zip(names(abstract), jax.tree.leaves(abstract), strict=True):
        data = np.fromfile(folder / name, np.uint8)
        if (data.size, zlib.crc32(data.data)) != files.get(name):
            raise StorageError(f"{folder / name} has changed since it was verified")
        pieces = [_index(piece) for piece in arrays[name]["pieces"]]
        if sum(map(_elements, pieces)) * leaf.dtype.itemsize != data.size:
            raise StorageError(f"{folder / name} does not have the pieces that its manifest lists")
        contents = _split_pieces(data, leaf, pieces)
        placed.append({device: jax.device_put(contents[index], device) for device, index in _indices(leaf).items()})
    return placed


def _split_pieces(
    data: npt.NDArray[np.uint8], leaf: jax.ShapeDtypeStruct, indices: Sequence[Index]
) -> dict[Index, Any]:
    """Return the pieces of a file by their place in the array."""
    contents, offset = {}, 0
    for index in indices:
        shape = tuple(end - first for first, end in index)
        length = _elements(index) * leaf.dtype.itemsize
        contents[index] = data[offset : offset + length].view(leaf.dtype).reshape(shape)
        offset += length
    return contents


def _unique_shards(leaf: jax.Array) -> dict[Index, jax.Array]:
    return {_bounds(shard.index, leaf.shape): shard.data for shard in leaf.addressable_shards}


def _indices(leaf: jax.ShapeDtypeStruct) -> dict[Any, Index]:
    indices = leaf.sharding.addressable_devices_indices_map(leaf.shape)
    return {device: _bounds(index, leaf.shape) for device, index in indices.items()}


def _bounds(index: Sequence[slice], shape: Sequence[int]) -> Index:
    """Return slices as numbers; a slice without an end extends to the end of the array."""
    ends = [part.indices(length) for part, length in zip(index, shape, strict=True)]
    return tuple((first, end) for first, end, _ in ends)


def _elements(index: Index) -> int:
    return math.prod(end - first for first, end in index)


def _index(bounds: Sequence[Sequence[int]]) -> Index:
    return tuple((int(first), int(end)) for first, end in bounds)


def _host_copy(data: jax.Array) -> npt.NDArray[Any]:
    """Copy a piece to this host. On CPUs JAX gives a view of the chip's memory, which the next step writes to."""
    content = np.asarray(data)
    return content.copy() if next(iter(data.devices())).platform == "cpu" else content
