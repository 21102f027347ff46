"""Folders that both hosts and this machine access: on a disk, or in a Google Cloud Storage bucket."""

from __future__ import annotations

from xpk.storage.folder import Folder, open_folder
from xpk_shared.storage import address_problems, in_bucket

__all__ = ["Folder", "address_problems", "in_bucket", "open_folder"]
