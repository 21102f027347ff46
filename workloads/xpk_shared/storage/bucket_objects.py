"""Objects of a bucket by their names: single requests, and requests in parallel."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from xpk_shared.storage.address import BUCKET
from xpk_shared.storage.client import CONNECT_SECONDS, OutOfRange, connect, retries, translating_errors
from xpk_shared.storage.place import MAX_CONCURRENT, RETRY_SECONDS, Entry, check_size

_TYPE = "application/octet-stream"

Item = TypeVar("Item")


class Objects:
    """The object with a name, and all objects below it, whose names begin with it and a slash.

    `client`: None connects on first use, because that may require credentials. `seconds`: time of retries.
    """

    def __init__(self, client: Any, bucket: str, name: str, seconds: float = RETRY_SECONDS) -> None:
        self._own_client, self._bucket, self._name, self._seconds = client, bucket, name, seconds

    def __str__(self) -> str:
        return f"{BUCKET}{self._bucket}/{self._name}".rstrip("/")

    def __truediv__(self, name: str) -> Self:
        return self._with_name(self._prefix + name)

    def append_suffix(self, suffix: str) -> Self:
        """Return the objects at this name with `suffix` appended."""
        return self._with_name(self._name + suffix)

    def connect(self) -> None:
        """Load the credentials. Raises the errors of `client.connect`."""
        _ = self._client

    def look(self) -> Entry | None:
        """Return size and generation of the object; None if it does not exist."""
        with translating_errors(self):
            blob = self._client.bucket(self._bucket).get_blob(self._name, **self._retries)
        return None if blob is None else self._entry(blob, self._name.rpartition("/")[2])

    def entry(self) -> Entry:
        """Return size and generation of the object."""
        if (entry := self.look()) is None:
            raise FileNotFoundError(2, "no such object", str(self))
        return entry

    def files(self) -> list[Entry]:
        """Return the objects directly below."""
        return [self._entry(blob) for blob in self._list(delimiter="/") if blob.name != self._prefix]

    def folders(self) -> list[str]:
        """Return the names directly below that have objects below them."""
        with translating_errors(self, listing=True):
            blobs = self._client.list_blobs(self._bucket, prefix=self._prefix, delimiter="/", **self._retries)
            for _ in blobs:
                pass
            return [name.removeprefix(self._prefix).rstrip("/") for name in blobs.prefixes]

    def below(self) -> list[Entry]:
        """Return all objects below."""
        return [self._entry(blob) for blob in self._list()]

    def matching(self, pattern: str, limit: int) -> list[Entry]:
        """Return at most `limit` objects below that match a pattern; also others, if the server ignores patterns."""
        return [self._entry(blob) for blob in self._list(match_glob=self._prefix + pattern, max_results=limit)]

    def sums(self) -> dict[str, tuple[int, str]]:
        """Return size and checksum of every object below, as stored by the bucket, without reading the objects."""
        checksums = [(self._entry(blob), blob.md5_hash, blob.crc32c) for blob in self._list()]
        return {entry.name: (entry.size, f"md5:{md5}" if md5 else f"crc32c:{crc}") for entry, md5, crc in checksums}

    def is_empty(self) -> bool:
        """Return whether no object is below. Raises BucketNotFound."""
        return not self._list(max_results=1)

    def read(self, limit: int | None = None) -> bytes:
        """See `Place.read`; the content's checksum is verified."""
        if limit is not None:
            check_size(self.entry().size, limit, self)
        with translating_errors(self):
            content: bytes = self._blob().download_as_bytes(**self._retries)
            return content

    def part(self, start: int, size: int) -> bytes:
        """See `Place.part`; a part has no checksum to verify."""
        end = start + size - 1 if start >= 0 else None
        with translating_errors(self):
            try:
                content: bytes = self._blob().download_as_bytes(
                    start=start, end=end, checksum=None, raw_download=True, **self._retries
                )
            except OutOfRange:  # the object has no such part; it may be empty
                return b""
            return content[:size]

    def create(self, content: bytes, generation: int | None) -> int:
        """Write the object if it has this `generation` (0: it does not exist; None: any); return the new one.

        Raises FileExistsError if it has another generation.
        """
        blob = self._blob()
        with translating_errors(self):
            blob.upload_from_string(content, content_type=_TYPE, if_generation_match=generation, **self._retries)
        return int(blob.generation)

    def adopt(self, file: Path) -> Entry:
        """Upload a file."""
        blob = self._blob()
        with translating_errors(self):
            blob.upload_from_filename(str(file), content_type=_TYPE, **self._retries)
        return self._entry(blob, self._name.rpartition("/")[2])

    def download(self, file: Path) -> None:
        """See `Place.download`; the checksum is verified."""
        with translating_errors(self):
            self._blob().download_to_filename(str(file), **self._retries)

    def append(self, part: Objects, known: Entry) -> Entry:
        """Compose this object of itself and `part`, if its entry is still `known`; return its new entry.

        It is tried once: the caller must find out whether a failure occurred before or after the composition.
        """
        blob, sources = self._blob(), [self._blob(), part._blob()]
        with translating_errors(self):
            blob.compose(sources, if_generation_match=known.changed, retry=None, timeout=CONNECT_SECONDS)
        return self._entry(blob, known.name)

    def copy_to(self, target: Objects) -> None:
        """Copy this object inside Google's servers."""
        source, copy, token = self._blob(), target._blob(), None
        with translating_errors(self):
            while True:
                token, *_ = copy.rewrite(source, token=token, **self._retries)
                if token is None:
                    return

    def remove(self, generation: int | None = None) -> None:
        """Remove this object, if it exists.

        Raises FileExistsError if it has another `generation` (None: any).
        """
        with suppress(FileNotFoundError), translating_errors(self):
            self._blob().delete(if_generation_match=generation, **self._retries)

    def remove_each(self, names: Iterable[str]) -> None:
        """Remove objects below."""
        self._for_each(lambda name: (self / name).remove(), names)

    def _for_each(self, function: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Call `function` for all items in parallel; raise the first error."""
        self.connect()  # once, not in each thread
        with ThreadPoolExecutor(MAX_CONCURRENT, "bucket") as pool:
            list(pool.map(function, items))

    def _with_name(self, name: str) -> Self:
        return type(self)(self._own_client, self._bucket, name, self._seconds)

    @property
    def _client(self) -> Any:
        return self._own_client or connect()

    @property
    def _retries(self) -> dict[str, Any]:
        return retries(self._seconds)

    @property
    def _prefix(self) -> str:
        return f"{self._name}/" if self._name else ""

    def _blob(self) -> Any:
        return self._client.bucket(self._bucket).blob(self._name)

    def _list(self, **options: Any) -> list[Any]:
        with translating_errors(self, listing=True):
            blobs = self._client.list_blobs(self._bucket, prefix=self._prefix, **options, **self._retries)
            return list(blobs)

    def _entry(self, blob: Any, name: str = "") -> Entry:
        return Entry(name or blob.name.removeprefix(self._prefix), int(blob.size), int(blob.generation))
