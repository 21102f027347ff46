"""Local clusters: a folder each, with a store, the pods' folders and a daemon while something runs."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from xpk.local import daemon_control, process
from xpk.local.api import LocalApi
from xpk.local.store import FILE, Store
from xpk.model.errors import NotFoundError, XpkError
from xpk.storage.private import check_owner, make_folder

_GRACE_SECONDS = 5.0
_REMOVE_TRIES = 20


def create_cluster(folder: Path, *, workloads: str | None = None) -> LocalApi:
    """Create the cluster of a folder unless it exists, and open it."""
    try:
        make_folder(folder)
        make_folder(folder / process.PODS)
        bell = folder / process.BELL
        if not bell.exists():
            os.mkfifo(bell, 0o600)
            bell.chmod(0o600)  # the umask may have removed permissions of this user
    except OSError as error:
        raise XpkError(
            f"cannot write to '{folder}': {error.strerror}",
            hint="set XPK_STATE_DIR to a writable folder",
        ) from error
    Store(folder, create=True).close()
    return LocalApi(folder, workloads=workloads)


def open_cluster(folder: Path, *, workloads: str | None = None) -> LocalApi:
    """Open a cluster. Raises NotFoundError, and XpkError where its store is damaged."""
    check_owner(folder)
    if not (folder / FILE).exists():
        raise NotFoundError(f"local cluster '{folder.name}' not found", hint="xpk cluster list --provider local")
    Store(folder).close()
    return LocalApi(folder, workloads=workloads)


def delete_cluster(folder: Path, *, force: bool = False, remove: Callable[[Path], object] = shutil.rmtree) -> None:
    """Stop all processes of a cluster and remove it; with `force`, even if its store is damaged.

    `remove` removes a folder. Raises NotFoundError, and XpkError if another user owns it.
    """
    check_owner(folder)
    if not force:
        open_cluster(folder)
    elif not folder.is_dir():
        raise NotFoundError(f"local cluster '{folder.name}' not found", hint="xpk cluster list --provider local")
    for tries_left in range(_REMOVE_TRIES, 0, -1):
        try:
            daemon_control.stop(folder)
            process.stop_all(folder, _GRACE_SECONDS)
            # The store last, by which an interrupted removal is listed and can be repeated.
            for part in [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]:
                remove(part)
            remove(folder)
        except OSError as error:  # another process removes it too, or has added files
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY) or tries_left == 1:
                raise
        if not folder.exists():
            return
        time.sleep(0.05)


def list_clusters(root: Path) -> list[str]:
    """Return the names of the clusters under a folder."""
    return sorted(path.parent.name for path in root.glob(f"*/{FILE}"))
