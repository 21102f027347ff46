"""Files and folders on a disk or in a Google Cloud Storage bucket, behind one interface (ADR 0006).

`open_place` is the only factory. Only opening an address in a bucket imports Google's client.
"""

from __future__ import annotations

from pathlib import Path

from xpk_shared.storage.address import BUCKET, EMULATOR, address_problems, in_bucket, split_address
from xpk_shared.storage.disk import Disk
from xpk_shared.storage.errors import InvalidAddress, MissingClient
from xpk_shared.storage.place import RETRY_SECONDS, Entry, Lines, Place, Slot

__all__ = ["BUCKET", "EMULATOR", "Entry", "Lines", "Place", "Slot", "address_problems", "in_bucket", "open_place"]


def open_place(
    where: str | Path, *, root: Path | None = None, retry_seconds: float = RETRY_SECONDS, connect: bool = False
) -> Place:
    """Return the place at a path or an address gs://BUCKET/NAME, without accessing it.

    On a disk, symbolic links that lead out of `root` are not followed; with None all links are. Requests to a bucket
    are retried for `retry_seconds`. Credentials are loaded on first use, or immediately with `connect`, which raises
    their errors. Raises InvalidAddress, and MissingClient without Google's client.
    """
    if not in_bucket(address := str(where)):
        return Disk(Path(where), root)
    if problems := address_problems(address):
        raise InvalidAddress(problems[0])
    try:
        from xpk_shared.storage.bucket import Bucket
    except ImportError as error:  # also if other parts of `google.cloud` are installed
        raise MissingClient(f"{address} requires google-cloud-storage, which is not installed ({error})") from error
    bucket = Bucket(None, *split_address(address), retry_seconds)
    if connect:
        bucket.connect()
    return bucket
