"""The folders on this machine in which providers keep what they know of their clusters."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from xpk.storage.private import check_owner


def state_dir() -> Path:
    """Return the folder of this user's clusters; XPK_STATE_DIR overrides it. Raises XpkError for somebody else's."""
    override = os.environ.get("XPK_STATE_DIR")
    folder = Path(override).expanduser().absolute() if override else platformdirs.user_state_path("xpk")
    check_owner(folder, root_may=True)
    return folder


def state_of(provider: str, root: Path | None = None) -> Path:
    """Return the folder of a provider's clusters. Raises XpkError if it is somebody else's."""
    folder = (root or state_dir()) / provider
    check_owner(folder)
    return folder
