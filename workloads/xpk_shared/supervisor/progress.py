"""File to which a program appends its progress: variables, the beginnings of attempts, and a copy in a bucket.

docs/environment.md describes the file. Only slice 0 host 0 has one; what other hosts write goes to /dev/null, so that a
program may write on all hosts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from xpk_shared.supervisor.host import Host, say
from xpk_shared.supervisor.names import PROGRESS, PROGRESS_RECORD, STARTED

if TYPE_CHECKING:
    from xpk_shared.supervisor.bucket_copy import BucketCopy

_MODULE = "xpk_run.py"  # beside the secret, in pods


def progress_path(environ: Mapping[str, str]) -> str | None:
    """Return the file of a host whose output is a folder, from its variables; None without output or in a bucket."""
    folder = environ.get("XPK_OUTPUT_DIR", "")
    if not os.path.isabs(folder):
        return None
    is_first = environ.get("MEGASCALE_SLICE_ID") == environ.get("TPU_WORKER_ID") == "0"
    return os.path.join(folder, PROGRESS_RECORD) if is_first else os.devnull


class ProgressFile:
    """The file of this host, over all attempts of its command."""

    def __init__(self, host: Host, environ: Mapping[str, str]) -> None:
        self._path = progress_path(environ)
        self._copy: BucketCopy | None = None
        self._modules = os.path.dirname(host.secret_file)
        if self._path is None and host.output_dir:
            self._path = os.devnull
            if host.place(host.number) == (0, 0):
                self._path, self._copy = _copied(f"{host.output_dir.rstrip('/')}/{PROGRESS_RECORD}", environ)

    def begin(self, environ: Mapping[str, str], attempt: int, now: float) -> dict[str, str]:
        """Return the variables of an attempt that is started now, in Unix seconds.

        They include PYTHONPATH, by which programs import xpk_run. If the file has lines of an earlier attempt, the
        beginning of this one is noted in it: lines of shell programs name no attempt.
        """
        beginning = json.dumps({"attempt": attempt, "started": round(now, 3)}).encode() + b"\n"
        variables = {STARTED: f"{now:.3f}"}
        if os.path.isfile(os.path.join(self._modules, _MODULE)):
            paths = filter(None, (environ.get("PYTHONPATH"), self._modules))
            variables["PYTHONPATH"] = os.pathsep.join(paths)
        if self._path is not None:
            variables[PROGRESS] = self._path
            with suppress(OSError):  # the program reports it
                _note(self._path, beginning)
        if self._copy:
            self._copy.start(beginning)
        return variables

    def close(self) -> None:
        """Copy the last lines into the bucket, if the output is in one."""
        if self._copy:
            import shutil

            self._copy.close()
            shutil.rmtree(os.path.dirname(self._path or ""), ignore_errors=True)


def _copied(url: str, environ: Mapping[str, str]) -> tuple[str, BucketCopy | None]:
    """Return a file of this host whose lines are copied to an address in a bucket; none if it cannot be created."""
    import tempfile  # these imports are needed only here, and every host would wait for them

    from xpk_shared.supervisor.bucket_copy import BucketCopy

    try:
        path = os.path.join(tempfile.mkdtemp(prefix="xpk-"), PROGRESS_RECORD)
    except OSError as error:
        say(f"no progress is recorded: {error}")
        return os.devnull, None
    return path, BucketCopy(path, url, environ.get("STORAGE_EMULATOR_HOST", ""))


def _note(path: str, beginning: bytes) -> None:
    """Append the beginning of an attempt to a file with lines; create the folder of a new one."""
    if path == os.devnull:
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path) or not os.path.getsize(path):
        return
    with open(path, "rb+") as file:
        file.seek(-1, os.SEEK_END)
        line = b"" if file.read(1) == b"\n" else b"\n"
    with open(path, "ab", 0) as file:
        file.write(line + beginning)
