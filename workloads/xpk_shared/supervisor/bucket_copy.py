"""Copy of a growing file of lines in a bucket, by the JSON API of Google Cloud Storage and the standard library alone.

It runs in any image: no client library is needed. The credentials are those of the pod's service account. Lines are
appended as in xpk_shared/storage/bucket_lines.py: a part is uploaded, the object is composed of itself and the part.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from typing import Any

from xpk_shared.supervisor.host import say

EVERY_SECONDS = 5.0
_LAST_SECONDS, _TIMEOUT, _MAX_PAUSE_SECONDS = 5.0, 10.0, 60.0
_MAX_BATCH = 8 << 20  # bytes
_SERVER = "https://storage.googleapis.com"
_METADATA = "/computeMetadata/v1/instance/service-accounts/default/token"
_EARLY_SECONDS = 60.0  # before its end a token is replaced
_MISSING = 404
_FAILURES = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError)  # also answers of another server


class BucketCopy:
    """The copy of a file at `url`; `server`: of an emulator, or "" for Google's."""

    def __init__(self, path: str, url: str, server: str = "") -> None:
        bucket, _, self._name = url[len("gs://") :].partition("/")
        self._path, self._url, self._objects = path, url, _Objects(bucket, server.rstrip("/"))
        self._sent, self._batch = 0, b""  # bytes of the file that were read; lines that are being appended
        self._known: tuple[int, int] | None = None  # size and generation of the object; None: to be asked for
        self._size_before: int | None = None  # of the object, before an append whose outcome is unknown
        self._has_warned = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, beginning: bytes) -> None:
        """Copy lines from now on; the line `beginning` is written before the first of them."""
        if self._thread is None:
            self._beginning = beginning
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Copy the last lines; wait at most five seconds."""
        self._stop.set()
        if self._thread:
            self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        pause = EVERY_SECONDS
        while not self._stop.wait(pause):
            pause = EVERY_SECONDS if self._try() else min(2 * pause, _MAX_PAUSE_SECONDS)
        deadline = time.monotonic() + _LAST_SECONDS
        while not self._try() and time.monotonic() < deadline:
            time.sleep(1.0)

    def _try(self) -> bool:
        """Copy new lines; return whether all are copied."""
        try:
            while self._batch or self._read():
                self._append()
            return True
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
            KeyError,
            TypeError,
        ) as error:  # also the answer of another server
            if not self._has_warned:
                say(f"cannot copy the progress to {self._url}: {error}; retrying")
            self._has_warned = True
            return False

    def _read(self) -> bool:
        """Read the complete lines that are not copied yet; return whether there are any."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._sent)
                content = file.read(_MAX_BATCH)
        except FileNotFoundError:
            return False
        end = content.rfind(b"\n") + 1
        if not end and len(content) < _MAX_BATCH:
            return False
        content = content[:end] if end else content  # a line of this size is copied in parts; readers ignore it
        self._batch, self._beginning = self._beginning + content, b""
        self._sent += len(content)
        return True

    def _append(self) -> None:
        """Append the batch, unless the bucket has done so although its answer to the last request was lost."""
        if self._known is None:
            self._known = self._objects.look(self._name)
            if self._size_before is not None and self._known[0] == self._size_before + len(self._batch):
                self._batch, self._size_before = b"", None
                return
        self._size_before, generation = self._known
        self._known = None
        self._known = self._write(generation)
        self._batch, self._size_before = b"", None

    def _write(self, generation: int) -> tuple[int, int]:
        """Append the batch to the object of this generation; return the new size and generation."""
        if generation == 0:
            return self._objects.create(self._name, self._batch, 0)
        part = f"{self._name}.parts/{os.getpid()}-{self._sent}"
        self._objects.create(part, self._batch, None)
        known = self._objects.compose(self._name, part, generation)
        with suppress(OSError):
            self._objects.remove(part)
        return known


class _Objects:
    """Requests for the objects of a bucket. Every method raises OSError."""

    def __init__(self, bucket: str, server: str) -> None:
        self._server, self._bucket = server, urllib.parse.quote(bucket, safe="")
        self._token, self._until = "", 0.0

    def look(self, name: str) -> tuple[int, int]:
        """Return size and generation of an object, zeros if it does not exist."""
        try:
            return _entry(self._ask("GET", self._path(name)))
        except urllib.error.HTTPError as error:
            if error.code != _MISSING:
                raise
            return 0, 0

    def create(self, name: str, content: bytes, generation: int | None) -> tuple[int, int]:
        """Write an object, if it has this generation; return its new size and generation."""
        query = {"uploadType": "media", "name": name}
        if generation is not None:
            query["ifGenerationMatch"] = str(generation)
        path = f"/upload/storage/v1/b/{self._bucket}/o?{urllib.parse.urlencode(query)}"
        return _entry(self._ask("POST", path, content))

    def compose(self, name: str, part: str, generation: int) -> tuple[int, int]:
        """Append the content of another object to an object, if it has this generation; return the new ones."""
        body = {
            "sourceObjects": [{"name": name}, {"name": part}],
            "destination": {"contentType": "application/octet-stream"},
        }
        path = f"{self._path(name)}/compose?ifGenerationMatch={generation}"
        return _entry(self._ask("POST", path, json.dumps(body).encode(), "application/json"))

    def remove(self, name: str) -> None:
        """Remove an object."""
        self._ask("DELETE", self._path(name))

    def _path(self, name: str) -> str:
        return f"/storage/v1/b/{self._bucket}/o/{urllib.parse.quote(name, safe='')}"

    def _ask(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/octet-stream"
    ) -> dict[str, Any]:
        headers = {"Content-Type": kind} if body is not None else {}
        if not self._server:
            headers["Authorization"] = f"Bearer {self._access_token()}"
        request = urllib.request.Request((self._server or _SERVER) + path, body, headers, method=method)
        return _read(request)

    def _access_token(self) -> str:
        """Return an access token of this machine's service account."""
        if time.monotonic() > self._until:
            host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
            request = urllib.request.Request(f"http://{host}{_METADATA}", headers={"Metadata-Flavor": "Google"})
            answer = _read(request)
            self._token, seconds = str(answer["access_token"]), float(answer["expires_in"])
            self._until = time.monotonic() + seconds - _EARLY_SECONDS
        return self._token


def _entry(answer: dict[str, Any]) -> tuple[int, int]:
    return int(answer["size"]), int(answer["generation"])


def _read(request: urllib.request.Request) -> dict[str, Any]:
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        content = answer.read()
    parsed: dict[str, Any] = json.loads(content) if content.strip() else {}
    return parsed
