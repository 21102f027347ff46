"""Progress on stderr: one line that is rewritten on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence

import click

from xpk.cli.terminal.output import Console, duration, echo
from xpk.jobs.output.folder import Progress
from xpk.jobs.report.sparkline import sparkline
from xpk.model.status import Phase, WorkloadStatus

_BAR = (8, 24)  # columns, minimum and maximum
_CURVE = (12, 40)
_LIVE_SECONDS, _PLAIN_SECONDS = 1.0, 30.0  # between two updates, on a terminal and elsewhere


class LiveLine:
    """A line that is rewritten on a terminal, and printed at intervals elsewhere. Thread-safe."""

    def __init__(self, console: Console, plain_seconds: float = _PLAIN_SECONDS) -> None:
        self.is_live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not console.quiet
        self._console, self._plain_seconds, self._lock = console, plain_seconds, threading.RLock()
        self._shown, self._printed, self._last = False, -plain_seconds, ""

    @property
    def width(self) -> int:
        """Maximum number of columns of a line."""
        return shutil.get_terminal_size().columns - 1 if self.is_live else 1000

    def show(self, text: str, *, now: bool = False) -> None:
        """Show a text no wider than `width`; without a terminal only a changed one, after the interval or `now`."""
        with self._lock:
            if self.is_live:
                click.echo("\r\x1b[2K", err=True, nl=False, color=True)
                echo(click.unstyle(text) if self._console.color is False else text, err=True, nl=False, color=True)
                self._shown = True
            elif text != self._last and (now or time.monotonic() - self._printed >= self._plain_seconds):
                self._printed, self._last = time.monotonic(), text
                self._console.tell(text)

    def clear(self) -> None:
        """Remove the line, so that others can be printed."""
        with self._lock:
            if self._shown:
                click.echo("\r\x1b[2K", err=True, nl=False, color=True)
            self._shown = False

    def keep(self) -> None:
        """Keep the line and continue below it."""
        with self._lock:
            if self._shown:
                echo(err=True)
            self._shown = False


def progress_words(progress: Progress) -> list[str]:
    """Return the progress of a run as the parts of a sentence."""
    total = f" of {progress.total_steps}" if progress.total_steps else ""
    words = [f"step {progress.step}{total}"]
    if progress.has_loss:
        words.append("loss not finite" if progress.loss is None else f"loss {progress.loss:.4f}")
    if progress.step_seconds is not None:
        words.append(f"{progress.step_seconds:.3g} s a step")
    if progress.throughput is not None:
        words.append(f"{progress.throughput:,.0f} {progress.throughput_unit}")
    if progress.eta_seconds:
        words.append(f"ETA {duration(progress.eta_seconds)}")
    return words


def progress_bar(progress: Progress, width: int, note: str = "", losses: Sequence[float] = ()) -> str:
    """Return a bar and figures in at most `width` columns.

    `note` replaces the rates; `losses` are drawn as a curve if there is room.
    """
    step, *others = progress_words(progress)
    loss, rates = others[: progress.has_loss], others[progress.has_loss :]
    figures = [step.replace(" of ", "/"), *loss, *([note] if note else [rate.replace(" a ", "/") for rate in rates])]
    bar = _BAR[0] + 2 if progress.total_steps else 0
    while len(figures) > 1 and bar + len("  ".join(figures)) > width:
        figures.pop(-2 if figures[-1].startswith("ETA") and len(figures) > 3 else -1)
    text = "  ".join(figures)
    if progress.total_steps:
        columns = max(_BAR[0], min(_BAR[1], width - len(text) - 2))
        filled = min(columns, columns * progress.step // progress.total_steps)
        text = f"{click.style('━' * filled, fg='green')}{'╌' * (columns - filled)}  {text}"
        bar = columns + 2
    room = width - bar - len("  ".join(figures)) - 2
    return f"{text}  {sparkline(losses, min(room, _CURVE[1]))}" if losses and room >= _CURVE[0] else text


class Meter:
    """Display of an awaited workload: each new state, and its progress in between.

    `read` returns the progress of a workload; it may take seconds and is called on a thread.
    """

    def __init__(self, console: Console, read: Callable[[WorkloadStatus], Progress | None]) -> None:
        self._console, self._read, self._line = console, read, LiveLine(console)
        self._status: WorkloadStatus | None = None
        self._since, self._stop, self._lock = time.monotonic(), threading.Event(), threading.RLock()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self.progress: Progress | None = None

    def __enter__(self) -> Meter:
        """Start polling."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop polling; the last line is kept if it shows a step."""
        self._stop.set()
        with self._lock:
            self._line.keep() if self.progress else self._line.clear()

    def __call__(self, status: WorkloadStatus) -> None:
        """Print a workload's state if it has changed."""
        with self._lock:
            before, self._status = self._status, status
            if before and before.phase == status.phase and before.reason == status.reason:
                return
            if before is None or before.phase != status.phase:
                self._since = time.monotonic()
            if status.phase.is_final:
                self._look(status)
            if status.phase.is_final and self.progress:
                self._line.keep()
            self._line.clear()
            text = f"{status.name}: {status.phase}, {status.reason}"
            if status.phase is Phase.SUCCEEDED:
                self._console.done(text)
            elif status.phase is not Phase.FAILED:  # the error that follows reports it
                self._console.tell(f" • {text}")

    def _run(self) -> None:
        while not self._stop.wait(_LIVE_SECONDS if self._line.is_live else _PLAIN_SECONDS):
            if (status := self._status) and not status.phase.is_final:
                self._look(status)

    def _look(self, status: WorkloadStatus) -> None:
        progress = None if status.phase in (Phase.QUEUED, Phase.SUSPENDED) else self._read(status)
        with self._lock:
            if self._stop.is_set() or (self._status or status).phase != status.phase:
                return
            self.progress = progress or self.progress
            phase = "" if status.phase in (Phase.RUNNING, Phase.SUCCEEDED) else f"{status.phase}: {status.reason}"
            if self._line.is_live:
                lasts = f"{str(status.phase).lower()} for {duration(time.monotonic() - self._since)}"
                width = self._line.width - 5  # room for the ^C of Ctrl-C
                text = progress_bar(self.progress, width, phase) if self.progress else lasts
                self._line.show(f"   {text}")
            elif self.progress:
                text = ", ".join(progress_words(self.progress))
                self._line.show(f" • {status.name}: {text}", now=status.phase.is_final)
