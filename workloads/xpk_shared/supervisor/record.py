"""Records of restarts in place, which Kubernetes does not see, and of pauses, in a file in the output folder."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from xpk_shared.supervisor.host import Host, say
from xpk_shared.supervisor.names import RECORD
from xpk_shared.supervisor.restarts import End


def restart_record(host: Host, restarts: int, cause: End) -> dict[str, Any]:
    """Return the record of a restart: its time, the new attempt, and the host whose command caused it."""
    return _record(host, cause, {"attempt": host.attempt + restarts, "restarts_in_place": restarts})


def pause_record(host: Host, seconds: float, short_attempts: int, cause: End) -> dict[str, Any]:
    """Return the record of a pause before a restart: its length, and the number of short attempts in a row."""
    return _record(host, cause, {"pause_seconds": seconds, "short_attempts": short_attempts})


def _record(host: Host, cause: End, facts: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the host whose command caused it.

    A command that exited only because it was stopped had been frozen: others had waited for it in vain.
    """
    slice_id, number = host.place(cause.number)
    common, silent = {"time": round(time.time(), 3), "job": host.job}, {"silent": True} if cause.was_stopped else {}
    return {**common, **facts, "slice": slice_id, "host": number, "exit_code": cause.code, **silent}


def write_record(host: Host, record: dict[str, Any]) -> None:
    """Append a record to the file in the output folder, unless that is a bucket."""
    if not os.path.isabs(host.output_dir):
        return
    try:
        os.makedirs(host.output_dir, exist_ok=True)
        with open(os.path.join(host.output_dir, RECORD), "ab", 0) as file:
            file.write(json.dumps(record).encode() + b"\n")
    except OSError as error:
        say(f"cannot record the restart in {host.output_dir}: {error.strerror}")
