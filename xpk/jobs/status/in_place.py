"""Restarts in place, which Kubernetes does not see: from the record that the first host keeps in the output folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from xpk.api.text import rfc3339
from xpk.jobs.output.folder import with_time_limit
from xpk.jobs.output.json_lines import parse, read_number, read_whole
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.status.fields import when
from xpk.model.errors import XpkError
from xpk.model.status import Phase, Restart, WorkloadStatus, exit_words
from xpk.storage import in_bucket
from xpk_shared.supervisor.names import RECORD
from xpk_shared.supervisor.restarts import SHORT_SECONDS

_TAIL = 256 * 1024  # bytes: more than a thousand restarts
_DAY_SECONDS = 86400.0
_TIMES = (0.0, 253402300799.0)  # Unix seconds that have a date


def with_restarts_in_place(
    status: WorkloadStatus, roots: OutputRoots, now: Callable[[], float] = time.time
) -> WorkloadStatus:
    """Return a status that counts and explains restarts in place too; unchanged if their record cannot be read.

    It names a crash loop while the hosts wait for the next attempt. `now` returns the time in Unix seconds.
    """
    try:
        folder = roots.to_read(status)
        content = with_time_limit(folder, lambda opened: opened.read_end(RECORD, _TAIL)) if folder else None
    except XpkError:  # reported when the progress is read
        return status
    since = when(status.created)
    joined = _joined(status, read_record(content or b"", since))
    reason = crash_loop(content or b"", since, now())
    if not reason or status.phase is not Phase.RUNNING:
        return joined
    return replace(joined, phase=Phase.RESTARTING, reason=reason)


def with_local_restarts(statuses: Sequence[WorkloadStatus], roots: OutputRoots) -> list[WorkloadStatus]:
    """Apply `with_restarts_in_place` where the output is a folder of this machine: a list reads no buckets."""
    return [
        with_restarts_in_place(status, roots) if status.output_dir and not in_bucket(status.output_dir) else status
        for status in statuses
    ]


def _end_words(code: int, *, is_silent: bool) -> str:
    return "did not answer" if is_silent else f"ended with {exit_words(code)}"


def read_record(content: bytes, since: datetime) -> list[Restart]:
    """Return the restarts since a time; any program may have written the lines."""
    restarts = []
    for line in content.split(b"\n"):
        row = parse(line) or {}
        seconds, attempt = read_number(row, "time", _TIMES), read_whole(row, "attempt")
        slice_id, host, code = (read_whole(row, key) for key in ("slice", "host", "exit_code"))
        if seconds is None or not attempt or slice_id is None or host is None or code is None:
            continue
        began = datetime.fromtimestamp(seconds, UTC)
        is_silent = row.get("silent") is True  # its exit code is that of the supervisor's SIGKILL
        if began >= since:
            restarts.append(
                Restart(
                    time=rfc3339(began),
                    cause=f"host s{slice_id}/h{host} {_end_words(code, is_silent=is_silent)}; restarted in place",
                    attempt=attempt - 1,
                    slice=slice_id,
                    host=host,
                    exit_code=None if is_silent else code,
                )
            )
    return restarts


def crash_loop(content: bytes, since: datetime, now: float) -> str:
    """Return why the hosts wait for the next attempt at this time, "" if they do not."""
    row = parse(content.rstrip(b"\n").rpartition(b"\n")[2]) or {}
    begun, pause = read_number(row, "time", _TIMES), read_number(row, "pause_seconds", (0.0, _DAY_SECONDS))
    attempts, slice_id, host, code = (read_whole(row, key) for key in ("short_attempts", "slice", "host", "exit_code"))
    if begun is None or pause is None or not attempts or slice_id is None or host is None or code is None:
        return ""
    if begun < since.timestamp() or now > begun + pause:
        return ""
    words = _end_words(code, is_silent=row.get("silent") is True)
    left = max(0, math.ceil(begun + pause - now))
    return (
        f"crash loop: {attempts} attempts in a row ended within {SHORT_SECONDS:g} s, the last because host "
        f"s{slice_id}/h{host} {words}; the next begins in {left} s"
    )


def _joined(status: WorkloadStatus, in_place: Sequence[Restart]) -> WorkloadStatus:
    """Return a status with more restarts, all numbered in the order of their times."""
    if not in_place:
        return status
    history = sorted([*status.restart_history, *in_place], key=lambda restart: when(restart.time))
    total = status.restarts + len(in_place)
    unknown = total - len(history)
    return replace(
        status,
        restarts=total,
        restarts_counted=status.restarts_counted + len(in_place),
        restarts_in_place=len(in_place),
        restart_history=tuple(replace(restart, attempt=unknown + index) for index, restart in enumerate(history)),
    )
