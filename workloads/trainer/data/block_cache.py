"""Local cache of bucket files, of which a host copies only the blocks that it reads.

Blocks are copied into a sparse file on this host's disk, so that each is read from the bucket once and a restart reuses
them. The blocks' checksums distinguish copied blocks from holes and torn blocks.
"""

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from trainer.data.dataset import BLOCK, COPY_AGAIN
from trainer.errors import FatalError, Problem, StorageError, reason
from xpk_shared.storage import Place

Run = tuple[int, int]  # first block and end


def is_worthwhile(examples: int, example_bytes: int, total: int) -> bool:
    """Return whether a host that reads this many examples of files of `total` bytes reads less than half the blocks.

    Assumes that no two examples share a block. A host that reads more copies complete files, in fewer requests.
    """
    return examples * (-(-example_bytes // BLOCK) + 1) * BLOCK < total // 2


def runs(blocks: Iterable[int]) -> Iterator[Run]:
    """Yield the blocks as runs of neighbors, in order and without duplicates: each run is one request."""
    first = end = -1
    for block in sorted(set(blocks)):
        if block != end:
            if end > first:
                yield first, end
            first = block
        end = block + 1
    if end > first:
        yield first, end


def copy(place: Place, path: Path, size: int, sums: Sequence[int], run: Run) -> None:
    """Copy a run of blocks of a file of `size` bytes into `path`.

    Raises FatalError if they are damaged, StorageError if they do not fit on this host's disk.
    """
    begin, end = run[0] * BLOCK, min(run[1] * BLOCK, size)
    content = place.part(begin, end - begin)
    damaged = find_damaged_block(content, sums, run[0])
    if len(content) < end - begin:
        message = f"{str(place)!r} has {begin + len(content):,} bytes but should have {size:,}"
        raise FatalError(Problem(message, COPY_AGAIN))
    if damaged is not None:
        raise FatalError(damage_problem(str(place), damaged, size))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(fd, content, begin)
        finally:
            os.close(fd)
    except OSError as error:
        raise StorageError(f"{place} cannot be copied to this host's disk: {reason(error)}") from error


def find_damaged_block(content: bytes, sums: Sequence[int], first: int) -> int | None:
    """Return the first damaged block of `content`, which begins with block `first`, or None."""
    for at in range(0, len(content), BLOCK):
        if zlib.crc32(content[at : at + BLOCK]) != sums[first + at // BLOCK]:
            return first + at // BLOCK
    return None


def damage_problem(name: str, block: int, size: int) -> Problem:
    """Return the problem of a damaged block."""
    where = f"bytes {block * BLOCK:,} to {min((block + 1) * BLOCK, size):,}"
    return Problem(f"{name!r} is damaged: {where} do not match their checksum", COPY_AGAIN)
