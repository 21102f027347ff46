"""Folders and buckets behind one interface, with manifests, append and compare-and-swap."""

from pathlib import Path
from typing import cast

from trainer.storage.base import BUCKET, Place


def open_place(where: str | Path) -> Place:
    """Return the place at a path or an address gs://BUCKET/NAME.

    Raises FatalError if it is invalid, or if a package for buckets is not installed.
    """
    if str(where).startswith(BUCKET):
        from trainer.storage.gcs import open_bucket

        return open_bucket(str(where))
    from trainer.storage.local import Folder

    return cast(Place, Folder(Path(where)))
