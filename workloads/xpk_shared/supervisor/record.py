"""Records of restarts in place, which Kubernetes does not see, and of pauses, in a file of the output folder."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from xpk_shared.supervisor.host import Host, say
from xpk_shared.supervisor.names import RECORD
from xpk_shared.supervisor.restarts import End


def restart_record(host: Host, restarts: int, cause: End) -> dict[str, Any]:
    """Return the record of a restart: when, which attempt begins, and which host's command ended before it."""
    return _record(host, cause, {"attempt": host.attempt + restarts, "restarts_in_place": restarts})


def pause_record(host: Host, seconds: float, short_attempts: int, cause: End) -> dict[str, Any]:
    """Return the record of a pause before a restart: how long, and after how many short attempts in a row."""
    return _record(host, cause, {"pause_seconds": seconds, "short_attempts": short_attempts})


def _record(host: Host, cause: End, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the record of what a command's end has caused.

    A command that only ended because it was told to was frozen: others waited for it in vain.
    """
    slice_id, number = host.place(cause.number)
    about, silent = {"time": round(time.time(), 3), "job": host.job}, {"silent": True} if cause.told else {}
    return {**about, **facts, "slice": slice_id, "host": number, "exit_code": cause.code, **silent}


def write_record(host: Host, record: dict[str, Any]) -> None:
    """Append a record to the file in the output folder, if that is one of this host's."""
    if not os.path.isabs(host.output_dir):
        return
    try:
        os.makedirs(host.output_dir, exist_ok=True)
        with open(os.path.join(host.output_dir, RECORD), "ab", 0) as file:
            file.write(json.dumps(record).encode() + b"\n")
    except OSError as error:
        say(f"cannot record the restart in {host.output_dir}: {error.strerror}")
