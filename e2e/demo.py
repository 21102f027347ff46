"""`make demo`: two elastic slices of two hosts each on this machine, one host killed in the middle of training.

Every figure at the end is measured from this run. What people read goes to stderr; the one line on stdout
is a JSON object. Needs no cloud, no container and no network: `python -m e2e.demo`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.harness import DrillError, Lab, Workload
from xpk.cli.terminal.live import LiveLine, progress_bar
from xpk.cli.terminal.output import Console
from xpk.jobs.output.folder import latest_progress
from xpk.jobs.output.slices import FILE, SlicesChange, read_changes
from xpk.jobs.report.sparkline import sparkline

CLUSTER = WORKLOAD = "demo"
TPU_TYPE = "v5litepod-8"
SLICES = 2
VICTIM = (1, 1)  # slice 1 host 1
FIRST_STEP_SECONDS = 240.0  # first compilation, four processes on two cores
RECOVERY_SECONDS = 180.0
RUN_SECONDS = 300.0
_QUIET_SECONDS = 5.0  # between two progress lines if lines cannot be rewritten


class Shown:
    """The progress of the run as `xpk workload wait` shows it, with a curve of its losses."""

    def __init__(self) -> None:
        self._line = LiveLine(Console(), plain_seconds=_QUIET_SECONDS)

    def show(self, run: Workload, note: str = "") -> None:
        """Show the current progress."""
        width, text = self._line.width - 2, note or "starting"
        progress = latest_progress(str(run.folder)) if run.steps else None
        losses = [line["loss"] for line in run.steps]
        self._line.show(f"  {progress_bar(progress, width, note, losses) if progress else text[:width]}")

    def end(self) -> None:
        """Keep the line as it is."""
        self._line.keep()


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for all that it makes")
    parser.add_argument("--steps", type=int, default=100, help="steps of training")
    parser.add_argument("--every", type=int, default=20, help="steps from one checkpoint to the next")
    options = parser.parse_args()
    lab = Lab(folder=options.output.resolve(), cluster=CLUSTER, say=_say)
    # Python's own Ctrl-C raises in the main thread; a SIGTERM must clean up in the same way.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        lab.prepare()
    except DrillError as error:
        _say(f"error: {error}")
        return 1
    try:
        figures = _drill(lab, options.steps, options.every)
    except KeyboardInterrupt:
        _say("\ninterrupted; cleaning up")
        return 130
    except DrillError as error:
        _say(f"\nerror: {error}")
        _say_logs(lab)
        return 1
    finally:
        _clean(lab)
    print(json.dumps(figures), flush=True)
    return 0


def _drill(lab: Lab, steps: int, every: int) -> dict[str, Any]:
    """Run the drill of the demo and return its figures."""
    lab.create_cluster(TPU_TYPE, SLICES)
    elastic = ("--min-slices", "1")
    run = lab.create_workload(
        WORKLOAD, num_slices=SLICES, max_restarts=3, trainer=_trainer(steps, every), options=elastic
    )
    progress = Shown()
    for description in run.follow(lambda: bool(run.steps), FIRST_STEP_SECONDS):
        progress.show(run, f"starting: {description['reason']}" if description else "starting")
    _follow(run, progress, lambda: bool(run.steps[-1]["step"] >= steps // 2))
    killed = _kill(run, progress)
    _follow(run, progress, lambda: bool(run.steps[-1]["step"] >= steps))
    progress.end()
    lab.xpk("workload", "wait", WORKLOAD, "--cluster", CLUSTER, "--timeout", f"{RUN_SECONDS:.0f}")
    page = lab.folder / "report.html"
    asked = ("workload", "report", WORKLOAD, "--cluster", CLUSTER, "--file", str(page))
    figures = json.loads(lab.xpk(*asked, "--kill-time", f"{killed:.6f}", "-o", "json", capture=True))
    _say_figures(figures, run, page)
    return {key: figures[key] for key in _FIGURES} | {"report": str(page)}


_FIGURES = (
    "workload",
    "state",
    "slices",
    "hosts",
    "steps",
    "restarts",
    "lost_steps",
    "recovery_seconds",
    "initial_loss",
    "final_loss",
    "eval_loss",
    "goodput",
)


def _trainer(steps: int, every: int) -> list[str]:
    """Return the trainer's arguments: bytes of Python's own library, so that nothing is downloaded."""
    settings = {
        "data.path": "stdlib",
        "run.steps": steps,
        "run.eval_every": 2 * every,
        "run.log_every": 5,
        "checkpoint.every": every,
    }
    return ["--config", "tiny", *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def _follow(run: Workload, progress: Shown, until: Callable[[], bool]) -> None:
    for _ in run.follow(until, RUN_SECONDS):
        progress.show(run)


def _changes(run: Workload) -> list[SlicesChange]:
    """Return the changes of the active slices."""
    file = run.folder / FILE
    return read_changes(file.read_bytes()) if file.exists() else []


def _has_joined_after(run: Workload, killed: float) -> bool:
    """Return whether all slices are active again after a kill."""
    changes = [change for change in _changes(run) if change.time > killed]
    return bool(changes) and len(changes[-1].slices) == SLICES


def _kill(run: Workload, progress: Shown) -> float:
    """Kill the victim, and wait until its slice has joined the others again; return the time of the kill."""
    progress.end()
    step = run.steps[-1]["step"]
    _say(f"$ kill -9 {run.pid(*VICTIM)}   # slice {VICTIM[0]} host {VICTIM[1]}, after step {step}")
    killed = run.end_program(*VICTIM)
    _follow(run, progress, lambda: bool(run.steps[-1]["time"] > killed))
    progress.end()
    first = next(line for line in run.steps if line["time"] > killed)
    _say(f"  slice 0 continues: step {first['step']} finished {first['time'] - killed:.1f} s after the kill")
    for description in run.follow(lambda: _has_joined_after(run, killed), RECOVERY_SECONDS):
        phase = f"{description['phase']}: {description['reason']}" if description else "the slice starts again in place"
        progress.show(run, f"{time.time() - killed:5.1f} s since the kill, {phase}")
    progress.end()
    joined = _changes(run)[-1].time - killed
    _say(f"  slice {VICTIM[0]} joined the others {joined:.1f} s after the kill; no step was lost")
    return killed


def _say_figures(figures: dict[str, Any], run: Workload, page: Path) -> None:
    recovery, evaluation = figures["recovery_seconds"], figures["eval_loss"]
    rows = {
        "state": figures["state"],
        "size": f"{figures['slices']} slices, {figures['hosts']} hosts",
        "steps": figures["steps"],
        "restarts": figures["restarts"],
        "lost steps": figures["lost_steps"],
        "recovery": "-" if recovery is None else f"{recovery:.1f} s from the kill to the next finished step",
        "goodput": f"{figures['goodput']:.1%}",
        "loss": f"{figures['initial_loss']:.3f} → {figures['final_loss']:.3f}",
        "evaluation loss": "-" if evaluation is None else f"{evaluation:.3f}",
        "": sparkline([line["loss"] for line in run.steps], 48),
        "report": page,
    }
    _say("")
    for name, value in rows.items():
        _say(f"  {name:<16} {value}")
    _say("")


def _say_logs(lab: Lab) -> None:
    """Show the last log lines of every host; the workload may not exist yet."""
    asked = ("workload", "logs", WORKLOAD, "--cluster", CLUSTER, "--tail", "15")
    for extra in ((), ("--previous",)):
        try:
            lab.xpk(*asked, *extra)
        except DrillError as error:
            _say(f"  no logs: {error}")


def _clean(lab: Lab) -> None:
    """End all processes of the demo; a second Ctrl-C must not leave some of them."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        lab.delete_cluster()
    except (DrillError, OSError) as error:
        _say(f"warning: {error}")
    finally:
        signal.signal(signal.SIGINT, previous)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
