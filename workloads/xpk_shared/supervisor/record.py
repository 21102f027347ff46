"""Records of restarts in place, which Kubernetes does not see: a file in the output folder, and the last words."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

from xpk_shared.supervisor.host import Host, say
from xpk_shared.supervisor.restarts import End

FILE = "restarts.jsonl"
CAUSE = "XPK_RESTART_CAUSE"  # the record, for a program that writes to a bucket, where this one cannot
_VARIABLE, _LAST_WORDS = "XPK_TERMINATION_LOG", "/dev/termination-log"


def restart_record(host: Host, restarts: int, cause: End, now: float) -> dict[str, Any]:
    """Return the record of a restart: when, which attempt begins, and which host's command ended before it."""
    slice_id, number = divmod(cause.number, host.hosts_per_slice)
    return {
        "time": now,
        "job": host.job,
        "attempt": host.attempt + restarts,
        "restarts_in_place": restarts,
        "slice": slice_id,
        "host": number,
        "exit_code": cause.code,
    }


def write_record(host: Host, record: dict[str, Any]) -> None:
    """Append a record to the file in the output folder, if that is one of this host's."""
    if not os.path.isabs(host.output_dir):
        return
    try:
        os.makedirs(host.output_dir, exist_ok=True)
        with open(os.path.join(host.output_dir, FILE), "ab", 0) as file:
            file.write(json.dumps(record).encode() + b"\n")
    except OSError as error:
        say(f"cannot record the restart in {host.output_dir}: {error.strerror}")


def write_last_words(text: str) -> None:
    """Replace the message that is kept with the end of this host; do nothing where there is no file for it."""
    path = os.environ.get(_VARIABLE)
    with contextlib.suppress(OSError):
        file = os.open(path or _LAST_WORDS, os.O_WRONLY | os.O_TRUNC | (os.O_CREAT if path else 0), 0o600)
        os.write(file, text.encode())
        os.close(file)


def now() -> float:
    """Return the time as records have it."""
    return round(time.time(), 3)
