"""Private folders and files of this user, regardless of the umask, and locks that no symbolic link can redirect."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import stat
import time
from collections.abc import Callable
from pathlib import Path

from xpk.model.errors import TimedOutError, XpkError

HINT = "set XPK_STATE_DIR to a folder that you own"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SAY_SECONDS, _POLL_SECONDS = 1.0, 0.05


def check_owner(folder: Path, *, root_may: bool = False) -> None:
    """Raise XpkError if another user owns a folder, since its contents decide what runs here, or if it is not readable.

    `root_may`: root may own it too.
    """
    try:
        status = folder.stat()
    except PermissionError as error:
        raise XpkError(f"cannot access '{folder}': {error.strerror}", hint=HINT) from error
    except OSError:
        return  # the caller's own access reports the error
    if status.st_uid == os.geteuid() or (root_may and status.st_uid == 0):
        return
    raise XpkError(f"'{folder}' belongs to user {_user(status.st_uid)}, not to you ({_user(os.geteuid())})", hint=HINT)


def make_missing(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700. Existing ones stay unchanged."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        with contextlib.suppress(FileExistsError):  # another process was first
            missing.mkdir(mode=0o700)
            missing.chmod(0o700)  # the umask may have removed permissions of this user
    folder.mkdir(exist_ok=True)  # raises if it is a file


def make_folder(folder: Path) -> None:
    """Create a folder like `make_missing`; an existing one loses other users' write permission.

    Raises XpkError if another user owns it, OSError if it cannot be created.
    """
    make_missing(folder)
    check_owner(folder)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & _OTHERS_WRITE:
        folder.chmod(mode & ~_OTHERS_WRITE)


def open_file(path: Path, flags: int) -> int:
    """Open a file with mode 0600, creating it if it does not exist; never follow a symbolic link."""
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) != 0o600:
            os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def wait_for_lock(fd: int, resource: str, *, seconds: float, tell: Callable[[str], None], hint: str) -> None:
    """Take a lock. Report after a second what it waits for; raise TimedOutError after `seconds`."""
    began, is_reported = time.monotonic(), False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        waited = time.monotonic() - began
        if waited >= seconds:
            raise TimedOutError(f"timed out after {seconds:.0f}s: another xpk command holds {resource}", hint=hint)
        if waited >= _SAY_SECONDS and not is_reported:
            is_reported = True
            tell(f"waiting for {resource}, which another xpk command holds")
        time.sleep(_POLL_SECONDS)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
