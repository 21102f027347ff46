"""Small text files that a user names, read whole and with limits."""

from __future__ import annotations

from pathlib import Path

from xpk.model.errors import UsageError
from xpk_shared.storage.disk import open_regular

MAX_BYTES = 1 << 20


def read_text(file: Path, *, what: str = "", hint: str = "", encoding: str = "utf-8") -> str:
    """Return the text of a file. Raises FileNotFoundError if it does not exist, UsageError for any other problem.

    `what` is the flag that names it, or what it is. Pipes and devices are rejected: they may be endless.
    """
    try:
        with open_regular(file) as opened:
            content = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
        return content.decode(encoding)
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, str(file)) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or ("not UTF-8 text" if isinstance(error, UnicodeError) else str(error))
        raise UsageError(f"cannot read {f'{what} ' if what else ''}{file}: {why}", hint=hint) from error
