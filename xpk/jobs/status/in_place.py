"""Restarts in place, which Kubernetes does not see: from the record that the first host keeps in the output folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

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

TAIL = 256 * 1024  # bytes: more than a thousand restarts
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
        content = with_time_limit(folder, lambda opened: opened.read_end(RECORD, TAIL)) if folder else None
    except XpkError:  # reported when the progress is read
        return status
    since = when(status.created)
    is_elastic = status.min_slices is not None
    joined = _joined(status, read_record(content or b"", since, is_elastic=is_elastic))
    if status.min_slices is not None:
        return _with_waiting_slices(joined, status.min_slices, content or b"", since, now())
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


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a command, as a line of the record has it. `time` is in Unix seconds."""

    row: dict[str, Any]
    time: float
    slice: int
    host: int
    exit_code: int | None  # None for a frozen command: its code is that of the supervisor's SIGKILL

    def __str__(self) -> str:
        words = "did not answer" if self.exit_code is None else f"ended with {exit_words(self.exit_code)}"
        return f"host s{self.slice}/h{self.host} {words}"


def _read_end(line: bytes) -> _End | None:
    """Return the end that a line has, None for any other line; any program may have written it."""
    row = parse(line) or {}
    seconds = read_number(row, "time", _TIMES)
    slice_id, host, code = (read_whole(row, key) for key in ("slice", "host", "exit_code"))
    if seconds is None or slice_id is None or host is None or code is None:
        return None
    return _End(row, seconds, slice_id, host, None if row.get("silent") is True else code)


def read_record(content: bytes, since: datetime, *, is_elastic: bool = False) -> list[Restart]:
    """Return the restarts since a time; those of elastic slices name the slice that restarted."""
    restarts = []
    for end in filter(None, map(_read_end, content.split(b"\n"))):
        attempt, ended_at = read_whole(end.row, "attempt"), datetime.fromtimestamp(end.time, UTC)
        if attempt and ended_at >= since:
            restarts.append(
                Restart(
                    time=rfc3339(ended_at),
                    cause=f"{end}; slice {end.slice} restarted in place"
                    if is_elastic
                    else f"{end}; restarted in place",
                    attempt=attempt - 1,
                    slice=end.slice,
                    host=end.host,
                    exit_code=end.exit_code,
                )
            )
    return restarts


def crash_loop(content: bytes, since: datetime, now: float) -> str:
    """Return why the hosts wait for the next attempt at this time, "" if they do not."""
    end = _read_end(content.rstrip(b"\n").rpartition(b"\n")[2])
    return "" if end is None else _pause_words(end, since, now)


def _with_waiting_slices(
    status: WorkloadStatus, minimum: int, content: bytes, since: datetime, now: float
) -> WorkloadStatus:
    """Return the status of elastic slices with the crash loops of slices; the other slices continue."""
    newest = {end.slice: end for end in filter(None, map(_read_end, content.split(b"\n")))}
    loops = [
        f"slice {number}: {words}"
        for number, end in sorted(newest.items())
        if number < status.num_slices and (words := _pause_words(end, since, now))
    ]
    if not loops or status.phase is not Phase.RUNNING:
        return status
    stops = status.num_slices - len(loops) < minimum
    return replace(
        status,
        phase=Phase.RESTARTING if stops else status.phase,
        reason=loops[0] if stops else f"{status.reason}; {loops[0]}",
    )


def _pause_words(end: _End, since: datetime, now: float) -> str:
    """Return why the hosts of a command that ended wait for the next attempt, "" if they do not."""
    pause, attempts = read_number(end.row, "pause_seconds", (0.0, _DAY_SECONDS)), read_whole(end.row, "short_attempts")
    if pause is None or not attempts or end.time < since.timestamp() or now > end.time + pause:
        return ""
    remaining = max(0, math.ceil(end.time + pause - now))
    return (
        f"crash loop: {attempts} attempts in a row ended within {SHORT_SECONDS:g} s, the last because {end}; "
        f"the next begins in {remaining} s"
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
