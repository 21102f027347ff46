"""Private scratch folder on this host's disk, for copies of data and compiled programs."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def scratch() -> Path:
    """Return a folder on this host's disk that only this user can write to, shared by all hosts on this machine."""
    root, name = Path(tempfile.gettempdir()), f"xpk-trainer-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        (root / name).mkdir(mode=0o700)
    for folder in (root / name, *sorted(root.glob(f"{name}-*"))):  # another user may have taken the first name
        with contextlib.suppress(FileNotFoundError):
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                return folder
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
