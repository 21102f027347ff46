"""Connections through kubeconfig files, and private files."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from xpk.api.base import ObjectApi
from xpk.model.errors import MissingToolError, XpkError
from xpk.storage.private import make_missing, open_file


def connect(kubeconfig: Path | None, context: str | None = None) -> ObjectApi:
    """Return the API server of a context, by default the file's current one. Raises MissingToolError."""
    try:
        from xpk.api.kubernetes import KubernetesApi  # slow to import, and optional
    except ModuleNotFoundError as error:
        raise MissingToolError(
            "the Python package `kubernetes` is not installed", hint="pip install 'xpk-multislice[kubernetes]'"
        ) from error
    return KubernetesApi(kubeconfig=kubeconfig, context=context)


def write_private(file: Path, text: str) -> None:
    """Write a file with mode 0600 atomically. Raises XpkError if that fails."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        make_missing(file.parent)
        with os.fdopen(open_file(fresh, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as opened:
            opened.write(text)
        fresh.rename(file)
    except OSError as error:
        message = f"cannot write to '{file.parent}': {error.strerror}"
        raise XpkError(message, hint="set XPK_STATE_DIR to a writable folder") from error
    finally:
        with suppress(OSError):  # it was renamed, unless this was interrupted or the disk is full
            fresh.unlink(missing_ok=True)
