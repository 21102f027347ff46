"""Small text files that a user names, read whole and with limits."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from xpk.model.errors import UsageError

MOST_BYTES = 1 << 20


def read_text(file: Path, *, what: str = "", hint: str = "", encoding: str = "utf-8") -> str:
    """Return the text of a file. Raises FileNotFoundError if it does not exist, UsageError for any other problem.

    `what` is the flag that names it. Pipes and devices are rejected: they may be endless.
    """
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb", closefd=True) as opened:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ValueError("it is not a regular file")
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
        return content.decode(encoding)
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, str(file)) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or ("not UTF-8 text" if isinstance(error, UnicodeError) else str(error))
        raise UsageError(f"cannot read {f'{what} ' if what else ''}{file}: {why}", hint=hint) from error
