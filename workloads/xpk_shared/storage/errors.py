"""Errors of storage.

Failed accesses raise OSErrors with one line in `strerror` and the place in `filename`: FileNotFoundError,
PermissionError, FileExistsError (modified concurrently), those below, and the file system's own.
"""

from __future__ import annotations

import errno


class InvalidAddress(ValueError):
    """An address that names no place."""


class MissingClient(ImportError):
    """A bucket without google-cloud-storage being installed."""


class BucketNotFound(FileNotFoundError):
    """A bucket that does not exist."""


class NoCredentials(PermissionError):
    """A machine without credentials for Google Cloud."""


class Unauthenticated(PermissionError):
    """Credentials that the server does not accept."""


class Unreachable(ConnectionError):
    """A server that does not answer, or answers unexpectedly; a retry may succeed."""


class RefreshFailed(Unreachable):
    """Credentials that could not be refreshed."""


class ServerError(Unreachable):
    """An answer that is none of the others; `strerror` has the server's message."""


class Refused(OSError):
    """A file that is not accessed: a pipe, a device, or behind a symbolic link that is not followed."""


class TooLarge(OSError):
    """A file of `size` bytes, more than the limit of a read."""

    def __init__(self, size: int, where: str) -> None:
        super().__init__(errno.EFBIG, f"it holds {size} bytes", where)
        self.size = size
