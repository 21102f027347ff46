"""Waiting for the end of a workload: `xpk workload wait`, and `create --wait`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from xpk.api.base import ObjectApi
from xpk.capacity.provider import provider_of
from xpk.cli.target import output_roots
from xpk.cli.terminal.live import Meter, progress_words
from xpk.cli.terminal.output import Console
from xpk.cli.workload import views
from xpk.jobs import lifecycle
from xpk.jobs.output import folder as output
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.placement.moves import Tell, wait_through_moves
from xpk.jobs.placement.placements import placer_of
from xpk.jobs.placement.placer import Placer
from xpk.jobs.status.goodput import progress_of, with_goodput
from xpk.model import names
from xpk.model.durations import parse_duration
from xpk.model.errors import ConflictError, XpkError
from xpk.model.status import Phase, WorkloadStatus


def read_progress(console: Console, workload: WorkloadStatus, cluster: str) -> output.Progress | None:
    """Return a workload's progress with its goodput; None, with a warning, if its output cannot be read."""
    roots = output_roots(cluster)
    try:
        progress = _progress(workload, roots)
        if progress and progress.ignored_lines:
            console.tell(f"warning: ignored {progress.ignored_lines} damaged lines about the newest steps")
        return progress and with_goodput(progress, roots.to_read(workload), workload)
    except XpkError as error:
        console.tell(f"warning: cannot read the progress: {error.message}")
        if isinstance(error, ConflictError):
            console.tell(f"  hint: {error.hint}")
        return None


def await_end(
    console: Console,
    api: ObjectApi,
    name: str,
    namespace: str,
    cluster: str,
    timeout: float | None,
    *,
    stated_timeout: float | None = None,
    must_start: bool = False,
    on_status: Callable[[WorkloadStatus], None] = lambda status: None,
) -> WorkloadStatus:
    """Show a workload's progress until it ends; return its status. Ctrl-C stops waiting, not the workload.

    `on_status` is called with every change before it is shown. `stated_timeout`: the limit in words, if the wait began
    earlier.
    Raises TimedOutError, NotFoundError if it is deleted, and with `must_start` WorkloadFailedError if its image cannot
    be pulled.
    """
    flags, last = names.location_flags(cluster, namespace), list[WorkloadStatus]()
    roots = output_roots(cluster)

    def read(status: WorkloadStatus) -> output.Progress | None:
        with suppress(XpkError):  # tried again at the next update
            return _progress(status, roots)
        return None

    meter = Meter(console, read)

    def tell(status: WorkloadStatus) -> None:
        on_status(status)
        last[:] = [status]
        meter(status)

    try:
        with meter:
            return lifecycle.wait(
                api,
                name,
                namespace,
                timeout=timeout,
                stated_timeout=stated_timeout,
                tell=tell,
                where=flags,
                must_start=must_start,
            )
    except KeyboardInterrupt:
        state = f" ({_state(last[0], meter.progress)})" if last else ""
        console.tell(f"stopped waiting; workload '{name}' continues{state}")
        for verb, more in (("wait", ""), ("logs", " -f"), ("delete", "")):
            console.tell(f"  xpk workload {verb} {name}{flags}{more}")
        raise


def _state(status: WorkloadStatus, progress: output.Progress | None) -> str:
    steps = progress_words(progress)[:1] if progress and status.phase is not Phase.QUEUED else []
    return ", ".join([str(status.phase), *(steps or [status.reason])])


def _progress(status: WorkloadStatus, roots: OutputRoots) -> output.Progress | None:
    folder = roots.to_read(status)
    return progress_of(folder, status) if folder else None


def wait_for(console: Console, cluster: str, name: str, namespace: str, timeout: str | None) -> None:
    """Wait until a workload has succeeded. Raises WorkloadFailedError or TimedOutError."""
    seconds = parse_duration(timeout, "--timeout")

    def connect(where: str) -> ObjectApi:
        return provider_of(where).connect(where)

    def wait(here: str, left: float | None, look: Tell) -> WorkloadStatus:
        if here != cluster:
            console.tell(f"workload '{name}' was moved to cluster '{here}'")
        return await_end(console, connect(here), name, namespace, here, left, stated_timeout=seconds, on_status=look)

    def find_placer(here: str) -> Placer:
        return placer_of(connect(here), output_roots(here), name, namespace, connect, writes=False)

    place, ended = wait_through_moves(cluster, wait, find_placer, timeout=seconds)
    if console.is_data:
        console.data(with_progress(console, ended, place))
    lifecycle.check_succeeded(ended, where=names.location_flags(place, namespace))


def with_progress(console: Console, workload: WorkloadStatus, cluster: str) -> dict[str, Any]:
    """Return a workload's status, its progress and the next command, as data."""
    progress = None if workload.phase is Phase.QUEUED else read_progress(console, workload, cluster)
    after = {
        "progress": asdict(progress) if progress else None,
        "next": views.next_command(workload, progress, cluster),
    }
    return {**asdict(workload), **after}
