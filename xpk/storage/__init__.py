"""Folders that hosts and this machine both see: on a disk, or in a bucket of Google Cloud Storage."""

from xpk.storage.folder import Folder, in_bucket, open_folder, url_problems

__all__ = ["Folder", "in_bucket", "open_folder", "url_problems"]
