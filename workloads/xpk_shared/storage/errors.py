"""Errors of storage.

Failed accesses raise OSErrors with one line in `strerror` and the place in `filename`: FileNotFoundError,
PermissionError, FileExistsError (modified concurrently), those below, and the file system's own.
"""


class InvalidAddress(ValueError):
    """An invalid address."""


class MissingClient(ImportError):
    """An address in a bucket while google-cloud-storage is not installed."""


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


class Refused(OSError):
    """A file that must not be accessed: a pipe, a device, a symbolic link, or more bytes than the limit."""
