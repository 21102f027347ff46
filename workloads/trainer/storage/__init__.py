"""Places of a run: those of `xpk_shared.storage` with the trainer's errors, and signed files in them."""

import os
from pathlib import Path

from trainer.errors import FatalError, Problem, reason
from xpk_shared import storage
from xpk_shared.storage.errors import InvalidAddress, MissingClient

# By itself TensorStore waits for an answer without a limit. A request without one is sent again, up to 32 times with
# pauses of up to 32 s: it fails after 26 minutes (`hosts.time_limits.BUCKET_FLOOR`).
_TENSORSTORE = {
    "TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS": "10",
    "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "20",
    "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1",
}


def open_place(where: str | Path) -> storage.Place:
    """Return the place at a path or an address gs://BUCKET/NAME, for which credentials are loaded.

    Configures TensorStore, which accesses buckets by itself: how long it waits for an answer, and for an emulator.

    Raises FatalError if it is invalid, without a package for buckets, and without credentials.
    """
    address = str(where)
    if address and (problems := storage.address_problems(address)):
        is_in_bucket = storage.in_bucket(address)
        message = f"{address!r} is not an address in a bucket" if is_in_bucket else problems[0]
        raise FatalError(
            Problem(message, "Use gs://BUCKET/NAME" if is_in_bucket else "Use a folder, or gs://BUCKET/NAME")
        )
    if storage.in_bucket(address):
        _configure_tensorstore()
    try:
        return storage.open_place(where, connect=True)
    except MissingClient as error:
        hint = "pip install 'xpk-multislice[gcs]' (also in your own image), or use a folder"
        raise FatalError(Problem(str(error), hint)) from error
    except (OSError, InvalidAddress) as error:
        hint = "On a cluster use Workload Identity; elsewhere `gcloud auth application-default login`"
        raise FatalError(Problem(f"{address} cannot be opened: {reason(error)}", hint)) from error


def _configure_tensorstore() -> None:
    """Set its environment variables, except those that the user has set."""
    for name, value in _TENSORSTORE.items():
        os.environ.setdefault(name, value)
    if emulator := os.environ.get(storage.EMULATOR):
        os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", emulator)
        os.environ.setdefault("GOOGLE_AUTH_TOKEN_FOR_TESTING", "emulator")  # otherwise it looks for real credentials
