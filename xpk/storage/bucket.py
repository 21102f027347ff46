"""A folder in a bucket, through the official client; the only module that imports `google.cloud.storage`.

Objects whose names begin with the folder's prefix are its files. STORAGE_EMULATOR_HOST names another server
than Google's, as for every client of Google Cloud Storage; it is accessed without credentials.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar

import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud.storage import Client
from google.cloud.storage.retry import DEFAULT_RETRY

from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, UsageError, XpkError
from xpk.storage.folder import check_size, split_url

EMULATOR = "STORAGE_EMULATOR_HOST"
# This file marks a checkpoint as complete: it is copied last and removed first.
_COMMIT_MARK = "/manifest.json"
_TIMEOUT = (5.0, 60.0)  # seconds to connect, to wait for bytes
_PATIENCE, _EMULATOR_PATIENCE = 30.0, 2.0  # seconds for which a request is retried
_THREADS = 8  # fewer than the connections that the client keeps

Item = TypeVar("Item")
Result = TypeVar("Result")


class BucketFolder:
    """A `Folder` in a bucket. The client is created on first use, since it may require credentials."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._name, self._prefix = split_url(url)
        self._emulator = os.environ.get(EMULATOR, "")
        self._retry = DEFAULT_RETRY.with_timeout(_EMULATOR_PATIENCE if self._emulator else _PATIENCE)

    @property
    def url(self) -> str:
        """See `Folder.url`."""
        return self._url

    def is_empty(self) -> bool:
        """See `Folder.is_empty`."""
        with self._explained("list"):
            return not any(True for _ in self._list(self._prefix, max_results=1))

    def has(self, path: str) -> bool:
        """See `Folder.has`."""
        # By listing: it tells a missing bucket from a missing object, and needs no other permission.
        name = self._prefix + path
        with self._explained("list"):
            return any(blob.name == name for blob in self._list(name, max_results=1))

    def read(self, path: str) -> bytes | None:
        """See `Folder.read`."""
        name = self._prefix + path
        with self._explained("list"):
            found = [blob for blob in self._list(name, max_results=1) if blob.name == name]
        if not found:
            return None
        check_size(found[0].size or 0, f"{self._url}/{path}")
        return self._download(name)

    def read_end(self, path: str, size: int) -> bytes | None:
        """See `Folder.read_end`."""
        return self._download(self._prefix + path, start=-size)

    def read_all(self, folder: str) -> dict[str, bytes]:
        """See `Folder.read_all`."""
        prefix = f"{self._prefix}{folder}/"
        with self._explained("list"):
            blobs = [blob for blob in self._list(prefix, delimiter="/") if blob.name != prefix]
        check_size(sum(blob.size or 0 for blob in blobs), f"{self._url}/{folder}")
        names = [blob.name for blob in blobs]
        contents = self._parallel(self._download, names)
        found = zip(names, contents, strict=True)
        return {name.removeprefix(prefix): content for name, content in found if content is not None}

    def write(self, path: str, content: bytes) -> None:
        """See `Folder.write`."""
        with self._explained("write to"):
            self._bucket.blob(self._prefix + path).upload_from_string(
                content, content_type="application/octet-stream", timeout=_TIMEOUT, retry=self._retry
            )

    def rename(self, name: str) -> None:
        """See `Folder.rename`. Objects are copied inside Google's servers, then removed."""
        parent = self._prefix.rstrip("/").rpartition("/")[0]
        target = f"{parent}/{name}/" if parent else f"{name}/"

        def copy(blob: Any) -> None:
            copied, token = self._bucket.blob(target + blob.name.removeprefix(self._prefix)), None
            while True:
                token, *_ = copied.rewrite(blob, token=token, timeout=_TIMEOUT, retry=self._retry)
                if token is None:
                    return

        with self._explained("move"):
            blobs = list(self._list(self._prefix))
            self._parallel(copy, [blob for blob in blobs if not blob.name.endswith(_COMMIT_MARK)])
            self._parallel(copy, [blob for blob in blobs if blob.name.endswith(_COMMIT_MARK)])
            self._delete(blobs)

    def remove(self) -> None:
        """See `Folder.remove`."""
        with self._explained("remove"):
            self._delete(list(self._list(self._prefix)))

    @cached_property
    def _bucket(self) -> Any:
        if self._emulator and not self._emulator.startswith(("http://", "https://")):
            raise UsageError(
                f"{EMULATOR} is '{self._emulator}', which is not a URL", hint=f"{EMULATOR}=http://HOST:PORT"
            )
        # No project is needed to use a bucket, and none may be configured.
        return Client(project=None).bucket(self._name)

    def _list(self, prefix: str, *, max_results: int | None = None, delimiter: str | None = None) -> Iterator[Any]:
        found: Iterator[Any] = iter(
            self._bucket.list_blobs(
                prefix=prefix, max_results=max_results, delimiter=delimiter, timeout=_TIMEOUT, retry=self._retry
            )
        )
        return found

    def _download(self, name: str, *, start: int | None = None) -> bytes | None:
        """Return an object's content, or its part from `start` on; None if it does not exist."""
        with self._explained("read"):
            try:
                content: bytes = self._bucket.blob(name).download_as_bytes(
                    start=start, timeout=_TIMEOUT, retry=self._retry, raw_download=start is not None
                )
            except api.RequestRangeNotSatisfiable:  # the object is empty
                return b""
            except api.NotFound:
                return None
        return content

    def _delete(self, blobs: Iterable[Any]) -> None:
        def delete(blob: Any) -> None:
            with suppress(api.NotFound):  # another process removes it too
                blob.delete(timeout=_TIMEOUT, retry=self._retry)

        every = list(blobs)
        self._parallel(delete, [blob for blob in every if blob.name.endswith(_COMMIT_MARK)])
        self._parallel(delete, [blob for blob in every if not blob.name.endswith(_COMMIT_MARK)])

    def _parallel(self, work: Callable[[Item], Result], items: list[Item]) -> list[Result]:
        if not items:
            return []
        _ = self._bucket  # made once, not by each thread
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(work, items))

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        """Return the error for a failure of the client while it tried to `verb` this folder."""
        try:
            yield
        except api.RetryError as error:
            raise self._explain(error.cause or error, verb) from error
        except (api.GoogleAPICallError, auth.GoogleAuthError, requests.exceptions.RequestException) as error:
            raise self._explain(error, verb) from error

    def _explain(self, error: BaseException, verb: str) -> XpkError:
        doing = f"cannot {verb} {self._url}"
        if isinstance(error, auth.RefreshError | auth.InvalidOperation | api.Unauthorized):
            return AuthorizationError(
                f"{doing}: the credentials of this machine are not accepted ({_said(error)})",
                hint="`gcloud auth application-default login`",
            )
        if isinstance(error, auth.DefaultCredentialsError):
            return MissingToolError(
                f"{doing}: this machine has no credentials for Google Cloud",
                hint="`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
            )
        if isinstance(error, api.Forbidden):
            return AuthorizationError(
                f"not authorised: {doing}: {_said(error)}",
                hint=f"ask the owner of gs://{self._name} for the role roles/storage.objectUser on it",
            )
        if isinstance(error, api.NotFound):
            return NotFoundError(
                f"{doing}: bucket '{self._name}' not found",
                hint=f"`gcloud storage buckets create gs://{self._name}`, or choose another one",
            )
        if isinstance(error, api.GoogleAPICallError):
            return XpkError(f"{doing}: {_said(error)}", hint="try again")
        server = f"the storage emulator at {self._emulator}" if self._emulator else "Google Cloud Storage"
        hint = f"start it, or unset {EMULATOR}" if self._emulator else "check the network and try again"
        return XpkError(f"{doing}: no answer from {server}", hint=hint)


def _said(error: BaseException) -> str:
    """Return the server's error message in one line."""
    if isinstance(error, api.GoogleAPICallError):
        details = [str(each.get("message")) for each in error.errors if isinstance(each, Mapping)]
        text = next(filter(None, details), "") or error.message or f"HTTP {error.code}"
    else:
        text = str(error.args[0] if error.args else error)
    return " ".join(text.split())[:300]
