"""Places in a Google Cloud Storage bucket, through Google's own client.

A folder is a common prefix of names, nothing can be renamed or appended to, and writes are atomic.
STORAGE_EMULATOR_HOST, which the client reads, also redirects TensorStore.
"""

# mypy: disallow-untyped-calls=False

import contextlib
import functools
import hashlib
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainer.errors import FatalError, Problem, Unreachable
from trainer.storage.base import BUCKET, Entry
from trainer.storage.gcs_append import BucketLines
from trainer.storage.gcs_checkpoints import BucketShelf
from trainer.storage.local import making
from trainer.storage.scratch import scratch
from trainer.storage.slot import BucketSlot

_SECONDS = 120.0  # total time of retries of a request
_WAIT = (10.0, 60.0)  # seconds for connecting, and for receiving data
_MAX_CONCURRENT = 16  # concurrent requests; each is a round trip of many milliseconds
_CHUNK = 1 << 24

_NOT_INSTALLED = "pip install 'xpk-multislice[gcs]' (in an image of yours too), or use a folder"


class Bucket:
    """An object, or all objects with a name prefix."""

    def __init__(self, client: Any, bucket: str, name: str) -> None:
        self._client, self._bucket, self._name = client, bucket, name.strip("/")

    def __str__(self) -> str:
        return f"{BUCKET}{self._bucket}/{self._name}".rstrip("/")

    def __truediv__(self, name: str) -> "Bucket":
        return Bucket(self._client, self._bucket, f"{self._name}/{name}")

    def is_file(self) -> bool:
        """Return whether there is an object of this name."""
        return bool(self._name) and self._metadata() is not None

    def is_folder(self) -> bool:
        """Return whether there is an object below. A bucket that does not exist is not a folder."""
        with contextlib.suppress(FileNotFoundError):
            return bool(self._list(max_results=1))
        return False

    def entry(self) -> Entry:
        """Return size and generation."""
        metadata = self._metadata()
        if metadata is None:
            raise FileNotFoundError(2, "no such object", str(self))
        return self._entry(metadata, self._name.rpartition("/")[2])

    def files(self) -> list[Entry]:
        """Return the objects directly below."""
        return [self._entry(blob) for blob in self._list(delimiter="/")]

    def walk(self, skip: frozenset[str]) -> Iterator[Entry]:
        """Yield the objects below in the order of a folder's files."""
        keyed = []
        for entry in map(self._entry, self._list()):
            *folders, name = entry.name.split("/")
            if name and not name.startswith(".") and not any(f in skip or f.startswith(".") for f in folders):
                keyed.append(([(1, folder) for folder in folders] + [(0, name)], entry))
        return (entry for _, entry in sorted(keyed, key=lambda pair: pair[0]))

    def read(self) -> bytes:
        """Return the whole content; its checksum is verified."""
        with told(self):
            content: bytes = self._blob().download_as_bytes(retry=retries(), timeout=_WAIT)
            return content

    def read_each(self, entries: Iterable[Entry]) -> Iterator[bytes | None]:
        """Yield contents in order, some of them read ahead."""
        coming: deque[Future[bytes | None]] = deque()
        entries = iter(entries)
        pool = ThreadPoolExecutor(_MAX_CONCURRENT, "read")
        try:
            coming.extend(
                pool.submit(self._read_or_none, entry) for entry in itertools.islice(entries, _MAX_CONCURRENT)
            )
            while coming:
                yield coming.popleft().result()
                coming.extend(pool.submit(self._read_or_none, entry) for entry in itertools.islice(entries, 1))
        finally:
            pool.shutdown(cancel_futures=True)

    def head(self, size: int) -> bytes:
        """Return the first bytes of an object that is not empty."""
        return self.part(0, size)

    def part(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start`, or as many as exist, at least one."""
        with told(self):
            # A part has no checksum to verify.
            options = {"start": start, "end": start + size - 1, "checksum": None, "retry": retries(), "timeout": _WAIT}
            content: bytes = self._blob().download_as_bytes(**options)
            return content

    def write(self, content: bytes) -> None:
        """Write the object."""
        self.create(content, None)

    def create(self, content: bytes, generation: int | None) -> int:
        """Write the object if it has this `generation` (0: none; None: any); return its new one.

        Raises FileExistsError if it has another.
        """
        blob = self._blob()
        with told(self):
            blob.upload_from_string(content, if_generation_match=generation, retry=retries(), timeout=_WAIT)
        return int(blob.generation)

    def workshop(self) -> Path:
        """Return the folder in which this host keeps copies of objects."""
        return scratch()

    def adopt(self, file: Path) -> None:
        """Upload the file; it becomes this host's copy."""
        blob = self._blob()
        with told(self):
            blob.upload_from_filename(str(file), retry=retries(), timeout=_WAIT)
        self._keep(file, int(blob.generation))

    def local(self, digest: str) -> Path:
        """Return a copy on this host's disk, verified against the object's size and digest."""
        entry = self.entry()
        copy = self._copy(entry.changed)
        if not (copy.is_file() and copy.stat().st_size == entry.size and _sha256(copy).startswith(digest)):
            with making(scratch()) as file:
                with told(self):
                    self._blob().download_to_filename(str(file), retry=retries(), timeout=_WAIT)
                if not _sha256(file).startswith(digest):
                    message = f"{self} is damaged: its SHA-256 does not begin with {digest}"
                    raise FatalError(Problem(message, "Delete it and its .json to prepare it again from the source"))
                self._keep(file, entry.changed)
        return copy

    def partial(self, size: int) -> Path:
        """Return this host's copy, complete or sparse; its content is not verified."""
        entry = self.entry()
        if entry.size != size:
            message = f"{str(self)!r} has {entry.size:,} bytes but should have {size:,}"
            raise FatalError(Problem(message, "Copy it here again, or prepare the data set again"))
        whole, parts = self._copy(entry.changed), self._copy(f"{entry.changed}.parts")
        if whole.is_file() and whole.stat().st_size == size:
            return whole
        if not (parts.is_file() and parts.stat().st_size == size):
            with making(scratch()) as file:
                os.truncate(file, size)
                self._forget_older(entry.changed)
                os.replace(file, parts)
        return parts

    def lines(self) -> BucketLines:
        """Start appending lines in the background."""
        return BucketLines(self)

    def slot(self) -> BucketSlot:
        """Return the object as a slot, versioned by generation."""
        return BucketSlot(self)

    def room(self) -> int | None:
        """Return None: a bucket is never full."""
        return None

    def shelf(self) -> BucketShelf:
        """Return the checkpoints below; enables Orbax to write to them."""
        import fsspec  # type: ignore[import-untyped]

        for scheme in ("gs", "gcs"):  # Orbax's dependencies use both
            fsspec.register_implementation(scheme, "trainer.storage.gcs_filesystem.Files", clobber=True)
        return BucketShelf(self)

    def sums(self) -> dict[str, tuple[int, str]]:
        """Return size and checksum of every object below, as stored by the bucket: nothing is read."""
        return {
            self._entry(blob).name: (
                int(blob.size),
                f"md5:{blob.md5_hash}" if blob.md5_hash else f"crc32c:{blob.crc32c}",
            )
            for blob in self._list()
        }

    def folders(self) -> list[str]:
        """Return the names directly below that have objects below them."""
        with told(self):
            blobs = self._client.list_blobs(
                self._bucket, prefix=self._prefix, delimiter="/", retry=retries(), timeout=_WAIT
            )
            for _ in blobs:
                pass
            return [name.removeprefix(self._prefix).rstrip("/") for name in blobs.prefixes]

    def remove(self, generation: int | None = None) -> None:
        """Remove this object, if it exists.

        Raises FileExistsError if it has another `generation` (None: any).
        """
        with contextlib.suppress(FileNotFoundError), told(self):
            self._blob().delete(if_generation_match=generation, retry=retries(), timeout=_WAIT)

    def remove_each(self, names: Iterable[str]) -> None:
        """Remove objects below."""
        with ThreadPoolExecutor(_MAX_CONCURRENT, "remove") as pool:
            list(pool.map(lambda name: (self / name).remove(), names))

    def beside(self, suffix: str) -> "Bucket":
        """Return the place with this one's name and `suffix`."""
        return Bucket(self._client, self._bucket, self._name + suffix)

    def append(self, part: "Bucket", known: Entry) -> Entry:
        """Compose this object of itself and `part`, if it is still `known`; return its new entry.

        Tried once: the caller must find out whether a failure came before or after the composition.
        """
        blob = self._blob()
        with told(self):
            blob.compose([self._blob(), part._blob()], if_generation_match=known.changed, retry=None, timeout=_WAIT[0])
        return self._entry(blob, known.name)

    def _blob(self) -> Any:
        return self._client.bucket(self._bucket).blob(self._name)

    def _metadata(self) -> Any:
        with told(self):
            return self._client.bucket(self._bucket).get_blob(self._name, retry=retries(), timeout=_WAIT)

    @property
    def _prefix(self) -> str:
        return f"{self._name}/" if self._name else ""

    def _list(self, **options: Any) -> list[Any]:
        with told(self):
            options |= {"retry": retries(), "timeout": _WAIT}
            return list(self._client.list_blobs(self._bucket, prefix=self._prefix, **options))

    def _entry(self, blob: Any, name: str = "") -> Entry:
        return Entry(name or blob.name.removeprefix(self._prefix), int(blob.size), int(blob.generation))

    def _read_or_none(self, entry: Entry) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return (self / entry.name).read()
        return None

    def _copy(self, generation: int | str) -> Path:
        return scratch() / f"{hashlib.sha256(str(self).encode()).hexdigest()[:16]}-{generation}"

    def _keep(self, file: Path, generation: int) -> None:
        """Store a file as this host's copy, replacing older ones."""
        self._forget_older(generation)
        os.replace(file, self._copy(generation))

    def _forget_older(self, generation: int) -> None:
        """Remove the copies of other generations; another job may be using this one's."""
        kept = {self._copy(generation), self._copy(f"{generation}.parts")}
        for old in set(scratch().glob(self._copy("*").name)) - kept:
            old.unlink(missing_ok=True)


def open_bucket(address: str) -> Bucket:
    """Return the place of an address gs://BUCKET/NAME.

    Raises FatalError if it is malformed, without google-cloud-storage, and without credentials.
    """
    bucket, _, name = address.removeprefix(BUCKET).partition("/")
    if not bucket or ".." in name.split("/"):
        raise FatalError(Problem(f"{address!r} is not an address in a bucket", "Write gs://BUCKET/NAME"))
    return Bucket(_client(address), bucket, name)


@functools.cache
def _connect() -> Any:
    from google.cloud import storage  # type: ignore[import-untyped, unused-ignore]

    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator:
        os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", emulator)
        os.environ.setdefault("GOOGLE_AUTH_TOKEN_FOR_TESTING", "emulator")  # otherwise it looks for real credentials
    return storage.Client(project=os.environ.get("GOOGLE_CLOUD_PROJECT", "none"))  # objects belong to no project


def _client(address: str) -> Any:
    try:
        return _connect()
    except ImportError as error:
        message = f"{address} needs google-cloud-storage, which is not installed ({error})"
        raise FatalError(Problem(message, _NOT_INSTALLED)) from error
    except Exception as error:  # no credentials, or unreadable ones: google.auth raises errors of many types
        message = f"{address} cannot be opened: {_line(error)}"
        hint = "On a cluster use Workload Identity; elsewhere `gcloud auth application-default login`"
        raise FatalError(Problem(message, hint)) from error


def retries() -> Any:
    """Return the retry policy of idempotent requests."""
    from google.cloud.storage.retry import DEFAULT_RETRY  # type: ignore[import-untyped, unused-ignore]

    return DEFAULT_RETRY.with_timeout(_SECONDS)


@contextlib.contextmanager
def told(place: object) -> Iterator[None]:
    """Convert errors of Google's client into OSErrors with one line."""
    from google.api_core import exceptions  # type: ignore[import-untyped, unused-ignore]

    try:
        yield
    except OSError as error:
        if type(error).__module__.split(".")[0] in ("requests", "urllib3"):
            raise Unreachable(111, f"the bucket does not answer: {_line(error)}", str(place)) from error
        raise
    except exceptions.NotFound as error:
        raise FileNotFoundError(2, "no such object or bucket", str(place)) from error
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:
        raise PermissionError(13, f"no permission: {_line(error)}", str(place)) from error
    except exceptions.PreconditionFailed as error:
        raise FileExistsError(17, "it was modified concurrently", str(place)) from error
    except Exception as error:
        raise Unreachable(111, f"the bucket does not answer: {_line(error)}", str(place)) from error


def _line(error: BaseException) -> str:
    """Return an error's message, without the address and the document that Google's client adds."""
    text = getattr(error, "message", "") or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
