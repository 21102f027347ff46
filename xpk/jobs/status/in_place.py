"""Restarts in place, which Kubernetes does not see: from the record that the first host keeps in the output folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from xpk.api.text import rfc3339
from xpk.jobs.output.folder import with_time_limit
from xpk.jobs.output.json_lines import parse, read_number, read_whole
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.status.fields import when
from xpk.model.errors import XpkError
from xpk.model.status import Restart, WorkloadStatus, exit_words
from xpk.storage import in_bucket
from xpk_shared.supervisor.names import RECORD

_TAIL = 256 * 1024  # bytes: more than a thousand restarts
_TIMES = (0.0, 253402300799.0)  # Unix seconds that have a date


def with_restarts_in_place(status: WorkloadStatus, roots: OutputRoots) -> WorkloadStatus:
    """Return a status that counts and explains restarts in place too; unchanged if their record cannot be read."""
    try:
        folder = roots.to_read(status)
        content = with_time_limit(folder, lambda opened: opened.read_end(RECORD, _TAIL)) if folder else None
    except XpkError:  # reported when the progress is read
        return status
    return _joined(status, read_record(content or b"", when(status.created)))


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
        time = datetime.fromtimestamp(seconds, UTC)
        is_silent = row.get("silent") is True  # its exit code is that of the supervisor's SIGKILL
        if time >= since:
            restarts.append(
                Restart(
                    time=rfc3339(time),
                    cause=f"host s{slice_id}/h{host} {_end_words(code, is_silent=is_silent)}; restarted in place",
                    attempt=attempt - 1,
                    slice=slice_id,
                    host=host,
                    exit_code=None if is_silent else code,
                )
            )
    return restarts


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
