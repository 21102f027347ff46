"""Reading of the index of a data set's file: checksums of its blocks, and the ends of its documents."""

import hashlib
import struct

import numpy as np
import numpy.typing as npt

from trainer.data.dataset import BLOCK, COPY_AGAIN, TOKEN_BYTES, Corpus, Index, TokenFile
from trainer.errors import FatalError, Problem


def read_index(data: Corpus, file: TokenFile) -> Index | None:
    """Return the index of a file, if it has one. Raises FatalError if it is missing or damaged."""
    if not file.index:
        return None
    place = data.place(f"{file.name}.idx")
    try:
        content = place.read()
    except FileNotFoundError:
        raise FatalError(Problem(f"{str(place)!r} does not exist", COPY_AGAIN)) from None
    if not hashlib.sha256(content).hexdigest().startswith(file.index):
        raise FatalError(
            Problem(f"{str(place)!r} is damaged: its SHA-256 does not begin with {file.index}", COPY_AGAIN)
        )
    blocks = -(-file.tokens * TOKEN_BYTES[data.dtype] // BLOCK)
    sums, ends = content[: 4 * blocks], content[4 * blocks :]
    if len(sums) != 4 * blocks or len(ends) % 8 or not _are_ends(np.frombuffer(ends, "<u8"), file.tokens):
        message = f"{str(place)!r} is not an index of a file of {file.tokens:,} tokens"
        raise FatalError(Problem(message, COPY_AGAIN))
    return Index(struct.unpack(f"<{blocks}I", sums), struct.unpack(f"<{len(ends) // 8}Q", ends))


def _are_ends(ends_D: npt.NDArray[np.uint64], tokens: int) -> bool:
    """Return whether these are the ends of documents that fill a file of this many tokens."""
    return not len(ends_D) or bool(ends_D[-1] == tokens and (ends_D[:-1] <= ends_D[1:]).all())
