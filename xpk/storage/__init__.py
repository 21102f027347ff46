"""Folders that both hosts and this machine access: on a disk, or in a Google Cloud Storage bucket."""

from __future__ import annotations

from pathlib import Path

from xpk.model.errors import MissingToolError, UsageError
from xpk.storage.folder import Folder, in_bucket, url_problems

__all__ = ["Folder", "in_bucket", "open_folder", "url_problems"]


def open_folder(url: str) -> Folder:
    """Return the folder at a path or a `gs://` URL; nothing is looked at yet.

    Raises UsageError for no or another URL, MissingToolError without the client of Google Cloud Storage.
    """
    if problems := url_problems(url):
        raise UsageError(problems[0], problems=problems, hint="gs://BUCKET/PREFIX")
    if not in_bucket(url):
        from xpk.storage.disk import DiskFolder

        return DiskFolder(Path(url))
    try:
        from xpk.storage.bucket import BucketFolder  # heavy, and an extra
    except ImportError as error:  # also where other parts of `google.cloud` are installed
        raise MissingToolError(
            f"reading {url} needs the Python package `google-cloud-storage`", hint="pip install 'xpk-multislice[gcs]'"
        ) from error
    return BucketFolder(url)
