"""Google's client: its set-up, and its errors as OSErrors. Only this module imports `google`.

STORAGE_EMULATOR_HOST, which the client reads, names another server, accessed without credentials.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud.storage import Client
from google.cloud.storage.retry import DEFAULT_RETRY

from xpk_shared.storage.address import EMULATOR
from xpk_shared.storage.errors import (
    BucketNotFound,
    InvalidAddress,
    NoCredentials,
    RefreshFailed,
    ServerError,
    Unauthenticated,
    Unreachable,
)

OutOfRange = api.RequestRangeNotSatisfiable

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 60.0
_SHOWN = 300  # characters of a server's message
_DENIED: dict[type[Exception], type[PermissionError]] = {
    api.Forbidden: PermissionError,
    api.Unauthorized: Unauthenticated,
    auth.DefaultCredentialsError: NoCredentials,
}


def connect() -> Any:
    """Return the client of this process.

    Raises InvalidAddress for an invalid STORAGE_EMULATOR_HOST, and the errors of `translated`.
    """
    server = os.environ.get(EMULATOR, "")
    if server and not server.startswith(("http://", "https://")):
        raise InvalidAddress(f"{EMULATOR} is '{server}', which is not a URL")
    with translated("Google Cloud Storage"):
        return _client(server)


@functools.cache
def _client(server: str) -> Any:
    return Client(project=None)  # objects belong to no project, and none may be configured


def retries(seconds: float) -> dict[str, Any]:
    """Return the arguments of an idempotent request that is retried for some seconds."""
    return {"retry": DEFAULT_RETRY.with_timeout(seconds), "timeout": (CONNECT_SECONDS, ANSWER_SECONDS)}


@contextmanager
def translated(where: object, *, listing: bool = False) -> Iterator[None]:
    """Convert errors of Google's client into those of `errors.py`. In a `listing` only the bucket can be missing."""
    try:
        yield
    except api.RetryError as error:
        raise _translate(error.cause or error, str(where), listing) from error
    except InvalidAddress:
        raise
    except Exception as error:  # the client raises errors of many types
        if isinstance(error, OSError) and type(error).__module__.split(".")[0] not in ("requests", "urllib3"):
            raise  # of this host's disk, or translated already
        raise _translate(error, str(where), listing) from error


def _translate(error: BaseException, where: str, listing: bool) -> OSError:
    said = _message(error)
    if isinstance(error, api.NotFound):
        return (BucketNotFound if listing else FileNotFoundError)(2, "no such object or bucket", where)
    if isinstance(error, api.PreconditionFailed):
        return FileExistsError(17, "it was modified concurrently", where)
    if isinstance(error, auth.RefreshError | auth.InvalidOperation):
        return RefreshFailed(111, said, where)
    for cause, kind in _DENIED.items():
        if isinstance(error, cause):
            return kind(13, said, where)
    if isinstance(error, api.GoogleAPICallError):
        return ServerError(111, said, where)
    return Unreachable(111, f"the bucket does not answer: {said}", where)


def _message(error: BaseException) -> str:
    """Return an error's message in one line, the server's own if there is one."""
    text = ""
    if isinstance(error, api.GoogleAPICallError):
        details = [str(each.get("message")) for each in error.errors if isinstance(each, Mapping)]
        text = next(filter(None, details), "") or error.message or f"HTTP {error.code}"
    return " ".join((text or str(error.args[0] if error.args else error) or type(error).__name__).split())[:_SHOWN]
