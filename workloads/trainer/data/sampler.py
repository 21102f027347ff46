"""Record order of batches: a pure function of (seed, step), with no state to save.

The records are divided into shards of equal size, and a batch takes the same number from each, in the order of shards.
So a host with complete shards never reads the records of another host, and the order does not depend on the number of
hosts. Example number i of a shard is the record at position i mod n of epoch i div n. Each epoch is a permutation of
the shard's n records: every record appears exactly once per epoch, even if the epoch ends inside a batch or the run
restarts.
"""

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

UInts = npt.NDArray[np.uint64]
_ROUNDS = 6


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of records. Up to `shards` - 1 of them are omitted, so that shards are of equal size."""

    seed: int
    batch: int  # records of a step
    records: int  # in the data set, numbered from 0
    shards: int = 1
    shuffle: str = "records"  # "records" of a shard, "files" and then the records of each, or "none"
    window: int = 0  # of "files": size of the windows to permute; 0: the whole file
    files: tuple[int, ...] = ()  # of "files": number of records of each

    def range_of(self, shard: int) -> range:
        """Return the records of a shard."""
        size = self.records // self.shards
        return range(shard * size, (shard + 1) * size)

    def ranges_of(self, shard: int) -> list[range]:
        """Return the records of a shard as ranges; there is one."""
        return [self.range_of(shard)]

    def ids(self, step: int) -> npt.NDArray[np.int64]:
        """Return the records [batch] of `step` (from 0)."""
        rows, size = np.uint64(self.batch // self.shards), np.uint64(self.records // self.shards)
        row_B = np.arange(self.batch, dtype=np.uint64)
        shard_B = row_B // rows
        epoch_B, position_B = np.divmod(np.uint64(step) * rows + row_B % rows, size)
        with np.errstate(over="ignore"):
            key_B = _mix(_mix(np.full(1, self.seed, np.uint64) + np.uint64(0x9E3779B97F4A7C15)) ^ epoch_B)
            key_B ^= _mix(shard_B)  # 0 for the first shard
            if self.shuffle == "records":
                position_B = _permute(position_B, key_B, np.full_like(position_B, size))
            elif self.shuffle == "files":
                for shard, epoch in {(int(s), int(e)) for s, e in zip(shard_B, epoch_B, strict=True)}:
                    is_here_B = (shard_B == shard) & (epoch_B == epoch)
                    position_B[is_here_B] = self._through_files(
                        position_B[is_here_B], key_B[is_here_B][0], shard, int(size)
                    )
        return (shard_B * size + position_B).astype(np.int64)

    def _through_files(self, position_N: UInts, key: np.uint64, shard: int, size: int) -> UInts:
        """Return the positions within a shard when its files, and each file's windows, are permuted."""
        first_F, count_F = _file_ranges(self.files, shard * size, (shard + 1) * size)
        number_F = np.arange(len(first_F), dtype=np.uint64)
        order_F = np.argsort(_mix(key ^ _mix(number_F + np.uint64(1))), kind="stable")
        ends_F = np.cumsum(count_F[order_F])
        nth_N = np.searchsorted(ends_F, position_N, side="right")
        file_N = order_F[nth_N]
        inside_N = position_N - (ends_F - count_F[order_F])[nth_N]
        window_N = np.full_like(inside_N, self.window) if self.window else count_F[file_N]
        begin_N = inside_N // window_N * window_N
        length_N = np.minimum(window_N, count_F[file_N] - begin_N)
        begin_N += first_F[file_N]
        keys_N = _mix(key ^ _mix(~begin_N))
        return begin_N + _permute(inside_N % window_N, keys_N, length_N) - np.uint64(shard * size)


@functools.lru_cache(maxsize=1024)
def _file_ranges(files: tuple[int, ...], start: int, end: int) -> tuple[UInts, UInts]:
    """Return (first record, number of records) of the files, or parts of files, from record `start` to `end`."""
    count_F = np.array(files, np.int64)
    ends_F = np.cumsum(count_F)
    first_F, last_F = np.clip(ends_F - count_F, start, end), np.clip(ends_F, start, end)
    is_nonempty = last_F > first_F
    return first_F[is_nonempty].astype(np.uint64), (last_F - first_F)[is_nonempty].astype(np.uint64)


def permute(position: int, seed: int, epoch: int, size: int) -> int:
    """Return the place of one of `size` positions in a permutation that depends on the seed and the epoch."""
    with np.errstate(over="ignore"):
        key = _mix(_mix(np.full(1, seed, np.uint64) + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(epoch))
        return int(_permute(np.full(1, position, np.uint64), key, np.full(1, size, np.uint64))[0])


def _permute(position_B: UInts, key_B: UInts, records_B: UInts) -> UInts:
    """Permute [0, records) by a keyed Feistel network, so that no list of all records is needed.

    The network permutes [0, 4^h) with 4^h >= records; a value beyond the end is passed through again until it falls
    inside (cycle walking; Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002).
    """
    bits_B = np.frexp((records_B - np.uint64(1)).astype(np.float64))[1]  # exact below 2^53
    half_B = np.maximum(1, (bits_B + 1) // 2).astype(np.uint64)
    position_B = _feistel(position_B, key_B, half_B)
    while (outside_B := position_B >= records_B).any():
        position_B[outside_B] = _feistel(position_B[outside_B], key_B[outside_B], half_B[outside_B])
    return position_B


def _feistel(x_B: UInts, key_B: UInts, half_B: UInts) -> UInts:
    mask_B = (np.uint64(1) << half_B) - np.uint64(1)
    left_B, right_B = x_B >> half_B, x_B & mask_B
    for round_number in range(_ROUNDS):
        left_B, right_B = right_B, left_B ^ (_mix(right_B ^ _mix(key_B + np.uint64(round_number))) & mask_B)
    return (left_B << half_B) | right_B


def _mix(x_B: UInts) -> UInts:
    """The finalizer of splitmix64 (Steele et al., 2014): every bit depends on every other."""
    x_B = (x_B ^ (x_B >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x_B = (x_B ^ (x_B >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x_B ^ (x_B >> np.uint64(31))
