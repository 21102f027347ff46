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

from xpk_shared.storage import errors
from xpk_shared.storage.address import EMULATOR

OutOfRange = api.RequestRangeNotSatisfiable

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 60.0
_SHOWN = 300  # characters of a server's message


def connect() -> Any:
    """Return the client of this process.

    Raises InvalidAddress for an invalid STORAGE_EMULATOR_HOST, and the errors of `translated`.
    """
    server = os.environ.get(EMULATOR, "")
    if server and not server.startswith(("http://", "https://")):
        raise errors.InvalidAddress(f"{EMULATOR} is '{server}', which is not a URL")
    with translated(""):
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
    except errors.InvalidAddress:
        raise
    except Exception as error:  # the client raises errors of many types
        if isinstance(error, OSError) and type(error).__module__.split(".")[0] not in ("requests", "urllib3"):
            raise  # of this host's disk, or translated already
        raise _translate(error, str(where), listing) from error


def _translate(error: BaseException, where: str, listing: bool) -> OSError:
    said = _message(error)
    match error:
        case api.NotFound() if listing:
            return errors.BucketNotFound(2, f"bucket '{where.split('/')[2]}' not found", where)
        case api.NotFound():
            return FileNotFoundError(2, "object or bucket not found", where)
        case api.PreconditionFailed():
            return FileExistsError(17, "it was modified concurrently", where)
        case api.Forbidden():
            return PermissionError(13, f"permission denied: {said}", where)
        case auth.RefreshError() | auth.InvalidOperation():
            return errors.RefreshFailed(111, f"the credentials of this machine are not accepted ({said})", where)
        case api.Unauthorized():
            return errors.Unauthenticated(13, f"the credentials of this machine are not accepted ({said})", where)
        case auth.DefaultCredentialsError():
            return errors.NoCredentials(13, f"this machine has no credentials for Google Cloud ({said})", where)
        case OSError() | auth.TransportError():
            emulator = os.environ.get(EMULATOR)
            server = f"the storage emulator at {emulator}" if emulator else "Google Cloud Storage"
            return errors.Unreachable(111, f"no answer from {server} ({type(error).__name__})", where)
    return errors.Unreachable(111, f"the server failed: {said}", where)


def _message(error: BaseException) -> str:
    """Return an error's message in one line, the server's own if there is one."""
    details = [str(each.get("message")) for each in getattr(error, "errors", ()) if isinstance(each, Mapping)]
    text = next(filter(None, details), "") or getattr(error, "message", "") or str(error) or type(error).__name__
    return " ".join(text.split())[:_SHOWN]
