"""Google's client: its set-up, and its errors as OSErrors. Only this module imports `google`.

The client reads STORAGE_EMULATOR_HOST, the address of another server that needs no credentials.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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

    Raises InvalidAddress for an invalid STORAGE_EMULATOR_HOST, and the errors of `translating_errors`.
    """
    server = os.environ.get(EMULATOR, "")
    if server and not server.startswith(("http://", "https://")):
        raise errors.InvalidAddress(f"invalid {EMULATOR} '{server}': expected a URL")
    with translating_errors(""):
        return _client(server)


@functools.cache
def _client(server: str) -> Any:
    client = Client(project=None)  # objects belong to no project, and none may be configured
    # Otherwise a thread asks for the bucket itself, also without tracing, for which this metadata is meant: one more
    # request of every host at once, with a permission that hosts need not have, repeated for two minutes.
    client._bucket_metadata_cache = None
    client._http.hooks["response"].append(_read_failure)
    return client


def _read_failure(response: Any, **_: object) -> None:
    """Read the answer to a failed download, of which the client reads nothing: its connection would stay open."""
    if response.status_code >= 400:
        with suppress(Exception):  # the client reports the failure itself
            _ = response.content


def retries(seconds: float) -> dict[str, Any]:
    """Return the arguments of an idempotent request that is retried for some seconds."""
    return {"retry": DEFAULT_RETRY.with_timeout(seconds), "timeout": (CONNECT_SECONDS, ANSWER_SECONDS)}


@contextmanager
def translating_errors(place: object, *, listing: bool = False) -> Iterator[None]:
    """Convert errors of Google's client into those of `errors.py`. In a `listing` only the bucket can be missing."""
    try:
        yield
    except api.RetryError as error:
        raise _translate(error.cause or error, str(place), listing) from error
    except errors.InvalidAddress:
        raise
    except Exception as error:  # the client raises errors of many types
        if isinstance(error, OSError) and type(error).__module__.split(".")[0] not in ("requests", "urllib3"):
            raise  # from this host's disk, or already translated
        raise _translate(error, str(place), listing) from error


def _translate(error: BaseException, place: str, listing: bool) -> OSError:
    message = _message(error)
    match error:
        case api.NotFound() if listing:
            return errors.BucketNotFound(2, f"bucket '{place.split('/')[2]}' not found", place)
        case api.NotFound():
            return FileNotFoundError(2, "object or bucket not found", place)
        case api.PreconditionFailed():
            return FileExistsError(17, "it was modified concurrently", place)
        case api.Forbidden():
            return PermissionError(13, f"permission denied: {message}", place)
        case auth.RefreshError() | auth.InvalidOperation():
            return errors.RefreshFailed(111, f"the credentials of this machine are not accepted ({message})", place)
        case api.Unauthorized():
            return errors.Unauthenticated(13, f"the credentials of this machine are not accepted ({message})", place)
        case auth.DefaultCredentialsError():
            return errors.NoCredentials(13, f"this machine has no credentials for Google Cloud ({message})", place)
        case OSError() | auth.TransportError():
            emulator = os.environ.get(EMULATOR)
            server = f"the storage emulator at {emulator}" if emulator else "Google Cloud Storage"
            return errors.Unreachable(111, f"no answer from {server} ({type(error).__name__})", place)
    return errors.Unreachable(111, f"the server failed: {message}", place)


def _message(error: BaseException) -> str:
    """Return an error's message in one line, the server's own if there is one."""
    details = [str(item.get("message")) for item in getattr(error, "errors", ()) if isinstance(item, Mapping)]
    text = next(filter(None, details), "") or getattr(error, "message", "") or str(error) or type(error).__name__
    return " ".join(text.split())[:_SHOWN]
