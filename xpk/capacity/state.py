"""Local folders in which providers store the state of their clusters."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from xpk.storage.private import check_owner


def state_dir() -> Path:
    """Return the folder of this user's clusters, or XPK_STATE_DIR. Raises XpkError if another user owns it."""
    override = os.environ.get("XPK_STATE_DIR")
    folder = Path(override).expanduser().absolute() if override else platformdirs.user_state_path("xpk")
    check_owner(folder, root_may=True)
    return folder


def state_of(provider: str, root: Path | None = None) -> Path:
    """Return the folder of a provider's clusters. Raises XpkError if another user owns it."""
    folder = (root or state_dir()) / provider
    check_owner(folder)
    return folder
