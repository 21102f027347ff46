"""Reader of a prepared data set's records, for hosts that load data.

A file is fetched and opened at its first read, and closed after many others have been read: a data set may have more
files than a process may open. It is read with `pread`, because access to a mapping of a truncated file would kill the
process. A block's checksum is verified when a record first reads it, so damage is found before training on it, without
extra reads.
"""

import hashlib
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.config import Data, Model
from trainer.data import block_cache, dataset, local_copies, packing, pair_records
from trainer.data.dataset import BLOCK, COPY_AGAIN, TOKEN_BYTES, Corpus, Index, TokenFile
from trainer.data.file_index import read_index
from trainer.data.image_decoding import Decoder
from trainer.data.object_decoding import ObjectDecoder
from trainer.data.objects import category_problem, object_format, unpack
from trainer.data.pair_records import PairRecords
from trainer.data.records import FIRST_TOKEN, LABEL_BYTES, SEGMENT_NUMBERS, Kind, Record, record
from trainer.errors import FatalError, Problem, reason

_MAX_CONCURRENT = 4  # files copied at a time
_MAX_CONCURRENT_PARTS = 16  # requests at a time for parts of files
_MAX_OPEN_FILES = 4096  # files open at a time
_DATA = Data()
Records = npt.NDArray[np.generic]


def counts(data: Corpus, model: Model, eval_fraction: float = 0.0) -> tuple[int, ...]:
    """Return the number of records of `model` in each file; reads only indexes, and only for packed records.

    Files of pairs are divided by length. For an evaluation of all lengths, `eval_fraction` of each is held out, and the
    result has the training records of each file, then the held-out records of each, which are never packed; longer
    pairs are left out.

    Raises FatalError if an index is damaged.
    """
    example = record(model)
    if data.has_encoded_images:
        return tuple(file.documents for file in data.files)
    if example.kind is Kind.TRANSLATIONS:
        pairs_F = np.array([file.documents // 2 * (file.longest <= model.seq_len) for file in data.files])
        held_F = np.diff((np.cumsum(pairs_F) * eval_fraction).astype(np.int64), prepend=0)
        trained = (pairs_F - held_F).tolist()
        if example.packed:
            trained = [
                _packed_count(data, file, example, held) if pairs else 0
                for file, pairs, held in zip(data.files, pairs_F.tolist(), held_F.tolist(), strict=True)
            ]
        return (*trained, *held_F.tolist())
    if not example.packed:
        return tuple(example.count(file.tokens) for file in data.files)
    return tuple(len(_plan(read_index(data, file), example)) for file in data.files)


def _packed_count(data: Corpus, file: TokenFile, example: Record, held_out: int) -> int:
    index = read_index(data, file)
    return len(pair_records.plan(index.ends, example, held_out)) - held_out if index else 0


def max_open_files() -> int:
    """Return the maximum number of open data files: half of the process's limit at most."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN_FILES if limit == resource.RLIM_INFINITY else max(1, min(_MAX_OPEN_FILES, limit // 2))


class Reader:
    """Reader of a data set's records by number; safe for several threads."""

    def __init__(
        self, data: Corpus, model: Model, counts: tuple[int, ...], *, max_open: int = 0, settings: Data = _DATA
    ) -> None:
        """Prepare to read; the settings have the seed and augmentation of images. Raises FatalError without Pillow."""
        self._data, self._record = data, record(model)
        self._decode: Decoder | ObjectDecoder | None = None
        if data.has_photographs:
            self._decode = Decoder(model.image, settings.seed)
        if data.has_objects:
            self._decode = ObjectDecoder(object_format(model), settings)
        # P parts: the files, or of pairs their training records, then their held-out records.
        count_P, files = np.array(counts, np.int64), len(data.files)
        self._ends_P = np.cumsum(count_P)
        self._first_P = self._ends_P - count_P
        self._file_P = np.arange(len(count_P)) % files
        self._held_out = counts[files:]  # of pairs, by file
        self._offset_P = np.concatenate([np.zeros(files, np.int64), count_P])[: len(count_P)]  # in the file
        self._files: dict[int, _File] = {}
        self._open: OrderedDict[int, _File] = OrderedDict()  # least recently used first
        self._max_open, self._lock = max_open or max_open_files(), threading.Lock()
        self._by_parts = False
        self._fetching = ThreadPoolExecutor(_MAX_CONCURRENT_PARTS, "parts")

    def documents(self, ids_N: npt.NDArray[np.int64]) -> list[bytes]:
        """Return encoded images with their labels or annotations. Raises FatalError naming a damaged file."""
        with self._lock:
            return [self._opened(nth).read_image(number) for nth, number in self._located(ids_N)]

    @property
    def bytes(self) -> int:
        """Bytes read from the data set's files and their indexes."""
        return sum(file.bytes for file in list(self._files.values()))

    def fetch(self, ranges: Iterable[range], examples: int | None = None) -> None:
        """Check all files with one of these records; copy those in a bucket to this host, several at a time.

        If this host reads so few `examples` that copying is not worthwhile, parts are copied when they are read, as are
        files that are not fetched. Raises the errors of `__call__`, and StorageError if the copies do not fit.
        """
        files = {
            int(self._file_P[part])
            for records in ranges
            for part in range(len(self._ends_P))
            if max(records.start, self._first_P[part]) < min(records.stop, self._ends_P[part])
        }
        if examples is not None:
            width = TOKEN_BYTES[self._data.dtype]
            total = width * sum(self._data.files[nth].tokens for nth in files)
            length = self._record.length
            if self._decode is not None:  # an average image
                length = -(-self._data.tokens // max(1, self._data.documents))
            self._by_parts = block_cache.is_worthwhile(examples, width * length, total)
        with ThreadPoolExecutor(_MAX_CONCURRENT, "fetch") as pool:
            list(pool.map(self._file, sorted(files)))

    def __call__(self, ids_N: npt.NDArray[np.int64], step: int | None = None) -> Records:
        """Return the records [N, S] after `step` steps, None in an evaluation; only encoded images depend on it.

        Raises FatalError naming a damaged file.
        """
        records_NS = np.zeros((len(ids_N), self._record.length), self._record.dtype)
        if self._decode is None:
            with self._lock:
                for row_S, (nth, number) in zip(records_NS, self._located(ids_N), strict=True):
                    self._opened(nth).read(number, row_S)
            return records_NS
        decoded = self._decode.records(self.documents(ids_N), ids_N.tolist(), step)
        for row_S, result, (nth, number) in zip(records_NS, decoded, self._positions(ids_N), strict=True):
            if isinstance(result, str):
                raise FatalError(self._files[nth].damaged_image(number, result))
            row_S[:] = result
        return records_NS

    def _positions(self, ids_N: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return the file of each record, and its number in the file."""
        part_N = np.searchsorted(self._ends_P, ids_N, side="right")
        number_N = ids_N - self._first_P[part_N] + self._offset_P[part_N]
        return list(zip(self._file_P[part_N].tolist(), number_N.tolist(), strict=True))

    def _located(self, ids_N: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return the same, of records whose blocks are on this host."""
        records = self._positions(ids_N)
        if self._by_parts:
            self._copy_parts(records)
        return records

    def _copy_parts(self, records: Iterable[tuple[int, int]]) -> None:
        """Copy the missing blocks of these records: many requests at a time, none for the same block."""
        missing: dict[int, set[int]] = {}
        for nth, number in records:
            missing.setdefault(nth, set()).update(self._opened(nth).missing(number))
        parts = [(self._files[nth], run) for nth, blocks in missing.items() for run in block_cache.runs(blocks)]
        list(self._fetching.map(lambda part: part[0].copy(part[1]), parts))

    def _file(self, nth: int) -> "_File":
        if nth not in self._files:
            held_out = self._held_out[nth] if self._held_out else 0
            file = self._data.files[nth]
            self._files[nth] = _File(self._data, file, self._record, held_out, by_parts=self._by_parts)
        return self._files[nth]

    def _opened(self, nth: int) -> "_File":
        if nth in self._open:
            self._open.move_to_end(nth)
            return self._open[nth]
        file = self._file(nth)
        while len(self._open) >= self._max_open:
            self._open.popitem(last=False)[1].close()
        file.open()
        self._open[nth] = file
        return file


class _File:
    """A file of a data set, open while it is read."""

    def __init__(
        self, data: Corpus, file: TokenFile, example: Record, held_out: int, *, by_parts: bool = False
    ) -> None:
        self._data, self._file, self._record = data, file, example
        self._dtype = np.dtype(data.dtype).newbyteorder("<")
        self._name, self._size = str(data.place(file.name)), file.tokens * self._dtype.itemsize
        self._by_parts = by_parts and bool(file.index)  # without block checksums the whole file is compared
        self._path, self._fd, self._identity = self._copied(), -1, (0, 0, 0, 0)
        index = read_index(data, file)
        self.bytes = len(index.pack()) if index else 0
        self._sums = index.sums if index else ()
        self._checked = np.zeros(len(self._sums), bool)
        ends, self._pairs = index.ends if index else (), None
        has_documents = example.has_documents or data.has_encoded_images
        if example.kind is Kind.TRANSLATIONS:
            self._pairs = PairRecords(self._name, file.longest, ends, example, held_out)
            self._plan: npt.NDArray[np.int64] | None = self._pairs.tokens
        else:
            self._plan = _plan(index, example, is_whole=data.has_encoded_images) if has_documents else None
        self._ends_D = np.array(ends if example.packed else (), np.int64)
        self.open()
        self.close()

    def open(self) -> None:
        """Open the file. A file that was replaced while it was closed is verified again.

        Raises FatalError if it is missing, or if it is damaged and has no index.
        """
        try:
            if not self._path.exists():  # a copy may have been cleaned up
                self._path = self._copied()
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FatalError(Problem(f"{self._name!r} does not exist", COPY_AGAIN)) from None
        stat = os.fstat(self._fd)
        identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if identity != self._identity:
            self._checked[:] = False
            if not self._file.index:  # no block checksums: the whole file, once
                self._verify_digest()
            self._identity = identity

    def _copied(self) -> Path:
        """Return the path on this host's disk: of the file, of a copy, or of a sparse copy that reads fill."""
        place = self._data.place(self._file.name)
        path = local_copies.partial_copy(place, self._size) if self._by_parts else None
        self._by_parts = path is not None
        return path or dataset.local(self._data, self._file)

    def missing(self, number: int) -> Iterator[int]:
        """Yield the blocks of record `number` that are not copied yet."""
        for block in range(*self._blocks(*self._span(number))) if self._by_parts else ():
            if not self._checked[block]:
                begin = block * BLOCK
                content = os.pread(self._fd, min(BLOCK, self._size - begin), begin)
                if block_cache.find_damaged_block(content, self._sums, block) is None:
                    self._checked[block] = True
                else:
                    yield block

    def copy(self, run: block_cache.Run) -> None:
        """Copy missing blocks. Raises FatalError or StorageError."""
        block_cache.copy(self._data.place(self._file.name), self._path, self._size, self._sums, run)

    def close(self) -> None:
        """Close the file; it can be opened again."""
        os.close(self._fd)
        self._fd = -1

    def read(self, number: int, row_S: Records) -> None:
        """Write record `number` of the file into `row_S`; the padding of a packed record is left unchanged."""
        start, end = self._span(number)
        numbers = self._tokens(start, end)
        self._check_range(number, numbers)
        if self._plan is None:
            row_S[:] = numbers
            return
        if self._pairs is not None:
            self._pairs.write(number, numbers, row_S)
            return
        first_half, second_half = np.split(row_S, 2)
        first_half[: end - start] = numbers
        second_half[: end - start] = packing.segments(self._ends_D, start, end)

    def read_image(self, number: int) -> bytes:
        """Return an encoded image and its label or annotations."""
        numbers = self._tokens(*self._span(number))
        if len(numbers) <= LABEL_BYTES:
            raise FatalError(self.damaged_image(number, "it is empty"))
        self._check_range(number, numbers)
        return numbers.tobytes()

    def damaged_image(self, number: int, cause: str) -> Problem:
        """Return the problem of an image that cannot be decoded."""
        message = f"image {number:,} of {self._name!r} is damaged: {cause}"
        return Problem(message, "Remove it from the source, and prepare the data set again")

    def _check_range(self, number: int, numbers: Records) -> None:
        """Raise FatalError for a label or token outside the model's range, for which the loss is unbounded below."""
        below, name = self._record.below, self._name
        if self._record.clicks is not None:
            if defect := self._record.clicks.defect(numbers.tolist()):
                message = f"example {number:,} of {name!r} has {defect}"
                raise FatalError(Problem(message, "Correct it, or use the settings that it was prepared with"))
            return
        if self._record.kind is Kind.OBJECTS:
            self._check_objects(number, numbers)
            return
        if self._record.kind is Kind.IMAGES:
            value = int.from_bytes(numbers[-LABEL_BYTES:].tobytes(), "little")
            message = f"image {number:,} of {name!r} has label {value}, model.classes = {below} allows 0 to {below - 1}"
            hint = f"Number labels from 0, or use --set model.classes={value + 1} or more"
        else:
            numbers = numbers[:-SEGMENT_NUMBERS] if self._record.kind is Kind.SEGMENTS else numbers
            reserved = FIRST_TOKEN if self._record.kind is Kind.TRANSLATIONS else 0
            below -= reserved
            value = int(numbers.max(initial=0)) if np.iinfo(self._dtype).max >= below else 0
            noun = self._record.noun if reserved else "example"
            of_model = f"model.vocab = {below + reserved} allows 0 to {below - 1}"
            message = f"{noun} {number:,} of {name!r} has token {value}, {of_model}"
            hint = f"Use --set model.vocab={value + reserved + 1} or more, or prepare the data with another tokenizer"
        if value >= below:
            raise FatalError(Problem(message, hint))

    def _check_objects(self, number: int, numbers: Records) -> None:
        """Raise FatalError for annotations that cannot be read, and for a category above the model's."""
        try:
            largest = max((one["category"] for one in unpack(numbers.tobytes())[1].objects), default=0)
        except (ValueError, KeyError, TypeError) as error:
            raise FatalError(self.damaged_image(number, reason(error))) from error
        if problems := category_problem(f"image {number:,} of {self._name!r}", largest, self._record.below):
            raise FatalError(*problems)

    def _span(self, number: int) -> tuple[int, int]:
        """Return the first token of record `number` and the one after its last."""
        if self._plan is None:
            start = number * self._record.stride
            return start, start + self._record.length
        start, end = self._plan[number].tolist()
        return start, end

    def _blocks(self, start: int, end: int) -> tuple[int, int]:
        """Return the first block with one of these tokens and the one after the last."""
        width = self._dtype.itemsize
        return start * width // BLOCK, -(-end * width // BLOCK)

    def _tokens(self, start: int, end: int) -> Records:
        width = self._dtype.itemsize
        begin, stop = start * width, end * width
        first, last = self._blocks(start, end)
        if self._checked[first:last].all():
            return np.frombuffer(self._bytes(begin, stop), self._dtype)
        content = self._bytes(first * BLOCK, min(last * BLOCK, self._size))
        if (block := block_cache.find_damaged_block(content, self._sums, first)) is not None:
            raise FatalError(block_cache.damage_problem(self._name, block, self._size))
        self._checked[first:last] = True
        return np.frombuffer(content[begin - first * BLOCK : stop - first * BLOCK], self._dtype)

    def _bytes(self, begin: int, end: int) -> bytes:
        content = os.pread(self._fd, end - begin, begin)
        self.bytes += len(content)
        if len(content) < end - begin:
            size = begin + len(content)
            message = f"{self._name!r} has {size:,} bytes but should have {self._size:,}"
            raise FatalError(Problem(message, COPY_AGAIN))
        return content

    def _verify_digest(self) -> None:
        with open(self._fd, "rb", closefd=False) as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        self.bytes += self._size
        if not digest.startswith(self._file.digest):
            message = f"{self._name!r} is damaged: its SHA-256 does not begin with {self._file.digest}"
            raise FatalError(Problem(message, COPY_AGAIN))


def _plan(index: Index | None, example: Record, *, is_whole: bool = False) -> npt.NDArray[np.int64]:
    """Return the first token of each record and the one after its last; `is_whole`: each is one document."""
    ends = index.ends if index else ()
    if is_whole:
        ends_D = np.array(ends, np.int64)
        return np.stack([np.concatenate([[0], ends_D[:-1]]), ends_D], axis=1)
    return packing.plan(ends, example.length // 2, example.stride)
