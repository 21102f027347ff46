"""Which records make a batch: a pure function of (seed, step), with no state to save.

Global example number i (step x batch + row) is the record at place i mod N of epoch i div N, and each
epoch is its own permutation of the N records: each record exactly once an epoch, also when the epoch
ends inside a batch, whatever the number of hosts and whenever the run is restarted.
"""

import numpy as np
import numpy.typing as npt

UInts = npt.NDArray[np.uint64]
_ROUNDS = 6


def record_ids(seed: int, step: int, batch: int, records: int) -> npt.NDArray[np.int64]:
    """Return the records [batch] of `step` (from 0), out of `records`."""
    i_B = np.uint64(step) * np.uint64(batch) + np.arange(batch, dtype=np.uint64)
    epoch_B, place_B = np.divmod(i_B, np.uint64(records))
    with np.errstate(over="ignore"):
        key_B = _mix(_mix(np.full(1, seed, np.uint64) + np.uint64(0x9E3779B97F4A7C15)) ^ epoch_B)
        return _permute(place_B, key_B, records).astype(np.int64)


def _permute(place_B: UInts, key_B: UInts, records: int) -> UInts:
    """Permute [0, records) by a keyed Feistel network, so no list of all records is ever made.

    The network permutes [0, 4^h) with 4^h >= records; a value beyond the end is sent through again until
    it falls inside (cycle walking; Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002).
    """
    half = np.uint64(max(1, ((records - 1).bit_length() + 1) // 2))
    place_B = _feistel(place_B, key_B, half)
    while (outside_B := place_B >= np.uint64(records)).any():
        place_B[outside_B] = _feistel(place_B[outside_B], key_B[outside_B], half)
    return place_B


def _feistel(x_B: UInts, key_B: UInts, half: np.uint64) -> UInts:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left_B, right_B = x_B >> half, x_B & mask
    for turn in range(_ROUNDS):
        left_B, right_B = right_B, left_B ^ (_mix(right_B ^ _mix(key_B + np.uint64(turn))) & mask)
    return (left_B << half) | right_B


def _mix(x_B: UInts) -> UInts:
    """The finalizer of splitmix64 (Steele et al., 2014): every bit depends on every other."""
    x_B = (x_B ^ (x_B >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x_B = (x_B ^ (x_B >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x_B ^ (x_B >> np.uint64(31))
