"""A double of google.cloud.storage.Client that keeps objects with their generations in memory."""

from __future__ import annotations

import base64
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.api_core import exceptions

from xpk_shared.storage.bucket import Bucket


class Blob:
    """An object by its name, with size, generation and checksum as of its last read or write."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self.name = client, name
        self.size, self.generation, self.md5_hash, self.crc32c = 0, 0, "", ""

    def upload_from_string(self, content: bytes, if_generation_match: int | None = None, **_: Any) -> None:
        self._client.request("write", self.name)
        with self._client.lock:
            self._check(if_generation_match)
            self._client.objects[self.name] = content, next(self._client.generations)
            self.look()

    def download_as_bytes(self, start: int = 0, end: int | None = None, **_: Any) -> bytes:
        self._client.request("read", self.name)
        with self._client.lock:
            content = self._found()[0]
        return content[start : len(content) if end is None else end + 1]

    def upload_from_filename(self, file: str, **_: Any) -> None:
        self.upload_from_string(Path(file).read_bytes())

    def download_to_filename(self, file: str, **_: Any) -> None:
        Path(file).write_bytes(self.download_as_bytes())

    def compose(self, sources: list[Blob], if_generation_match: int | None = None, **_: Any) -> None:
        self.upload_from_string(b"".join(source.download_as_bytes() for source in sources), if_generation_match)

    def rewrite(self, source: Blob, **_: Any) -> tuple[None]:
        self.upload_from_string(source.download_as_bytes())
        return (None,)

    def delete(self, if_generation_match: int | None = None, **_: Any) -> None:
        self._client.request("delete", self.name)
        with self._client.lock:
            self._found()
            self._check(if_generation_match)
            del self._client.objects[self.name]

    def look(self) -> Blob:
        content, self.generation = self._found()
        digest = hashlib.md5(content, usedforsecurity=False).digest()
        self.size, self.md5_hash = len(content), base64.b64encode(digest).decode()
        return self

    def _found(self) -> tuple[bytes, int]:
        if self.name not in self._client.objects:
            raise exceptions.NotFound(self.name)  # type: ignore[no-untyped-call, unused-ignore]
        return self._client.objects[self.name]

    def _check(self, generation: int | None) -> None:
        now = self._client.objects.get(self.name, (b"", 0))[1]
        if generation is not None and generation != now:
            raise exceptions.PreconditionFailed(self.name)  # type: ignore[no-untyped-call, unused-ignore]


class Listing:
    """The result of a listing: objects, and with a delimiter the names of folders."""

    def __init__(self, blobs: list[Blob], prefixes: set[str]) -> None:
        self._blobs, self.prefixes = blobs, prefixes

    def __iter__(self) -> Iterator[Blob]:
        return iter(self._blobs)


class Client:
    """One bucket. `before` is called before each request with its verb (read, write, delete, list) and name."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.generations = itertools.count(1)
        self.lock = threading.RLock()
        self.before: Callable[[str, str], None] = lambda verb, name: None

    def request(self, verb: str, name: str) -> None:
        self.before(verb, name)

    def bucket(self, name: str) -> Client:
        return self

    def blob(self, name: str) -> Blob:
        return Blob(self, name)

    def get_blob(self, name: str, **_: Any) -> Blob | None:
        self.request("read", name)
        with self.lock:
            return Blob(self, name).look() if name in self.objects else None

    def list_blobs(self, bucket: str, prefix: str = "", delimiter: str = "", **_: Any) -> Listing:
        self.request("list", prefix)
        with self.lock:
            names = sorted(name for name in self.objects if name.startswith(prefix))
            below = {name for name in names if delimiter and delimiter in name.removeprefix(prefix)}
            folders = {prefix + name.removeprefix(prefix).partition(delimiter)[0] + delimiter for name in below}
            return Listing([Blob(self, name).look() for name in names if name not in below], folders)


def place(name: str = "run", client: Client | None = None) -> Bucket:
    """Return a place in a bucket, by default an empty one."""
    return Bucket(client or Client(), "bucket", name)
