"""Time that a run stands still when a host ends: measured on local slices, in parts.

    python -m bench.recovery [--repeat 3] [--output bench/results/recovery-<date>.json]

Each case is one workload; after a checkpoint and a few more steps a host is ended, again and again. The
time runs from the signal to the end of the next finished step. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.harness import DrillError, Lab, Workload
from e2e.machine import machine
from xpk.jobs.report.goodput import Recovery, lost_steps, recoveries
from xpk.jobs.report.programs import read_folder

CLUSTER = "bench"
TPU_TYPE = "v5litepod-8"
SLICES = 2
EVERY = 10  # steps from one checkpoint to the next
PAST = 3  # steps after a checkpoint at which the host is ended
STEP_SECONDS = 300.0  # maximum time to wait for steps: compilation, and a busy machine


@dataclass(frozen=True, slots=True)
class Case:
    """The process to end, a host or only its trainer, and the method. `options` are those of `workload create`."""

    name: str
    words: str
    host: tuple[int, int]
    number: signal.Signals = signal.SIGKILL
    launcher: str = "plain"
    trainer_only: bool = False
    options: tuple[str, ...] = ()

    def end(self, run: Workload) -> float:
        """End it; return the time in Unix seconds."""
        end = run.end_program if self.trainer_only else run.end_host
        return end(*self.host, self.number)


CASES = (
    Case("kill", "SIGKILL of a trainer", (1, 1), trainer_only=True),
    Case("kill-coordinator", "of the coordinator's", (0, 0), trainer_only=True),
    Case("kill-cold", "without standby", (1, 1), trainer_only=True, options=("--standby-imports", "none")),
    Case("kill-new-host", "not in place", (1, 1), trainer_only=True, options=("--no-restart-in-place",)),
    Case("kill-host", "SIGKILL of a whole host", (1, 1)),
    Case("term-host", "SIGTERM, slice 1 host 1", (1, 1), signal.SIGTERM),
    Case("ray-kill-host", "Ray: SIGKILL of a whole host", (1, 1), launcher="ray"),
    Case("ray-kill-trainer", "Ray: SIGKILL of a trainer", (1, 1), launcher="ray", trainer_only=True),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one case."""

    case: Case
    recoveries: tuple[Recovery, ...]
    lost_steps: int


def main() -> int:
    """Measure, print the table, write the file; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="how often each host is ended")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this one")
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--output", type=Path, default=Path(f"bench/results/recovery-{today}.json"))
    given = parser.parse_args()
    chosen = [case for case in CASES if given.case is None or case.name in given.case]
    folder = Path(tempfile.mkdtemp(prefix="xpk-bench-"))
    lab = Lab(folder=folder / "lab", cluster=CLUSTER, say=_say)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # deletes the cluster, too
    try:
        lab.prepare()
        lab.create_cluster(TPU_TYPE, SLICES)
        measured = [_measure(lab, case, given.repeat) for case in chosen]
    except DrillError as error:
        _say(f"error: {error}")
        return 1
    finally:
        lab.delete_cluster()
        shutil.rmtree(folder, ignore_errors=True)
    print(table(measured))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(document(measured, today), indent=1) + "\n", encoding="utf-8")
    _say(f"written to {given.output}")
    return 0


def _measure(lab: Lab, case: Case, repeat: int) -> Measured:
    """End one host `repeat` times in one workload and read the consequences from its files."""
    options = ("--launcher", case.launcher, *case.options)
    run = lab.create_workload(
        case.name, num_slices=SLICES, max_restarts=repeat, trainer=endless_trainer(), options=options
    )
    ended: list[float] = []
    for turn in range(repeat):
        run.await_(lambda: _ready(run, len(ended)), STEP_SECONDS)
        ended.append(case.end(run))
        _say(f"  {turn + 1} of {repeat}: {case.words}, after step {run.steps[-1]['step']}")
        run.await_(lambda: _attempt(run) == len(ended), STEP_SECONDS)
    record = read_folder(run.folder)
    result = [one for at in ended for one in recoveries(record, kill_time=at) if one.since == at]
    lab.xpk("workload", "delete", case.name, "--cluster", lab.cluster, "--grace-period", "1", "--with-output")
    return Measured(case, tuple(result), lost_steps(record))


def endless_trainer() -> list[str]:
    """Return the arguments of a trainer that runs until its workload is deleted, and saves every EVERY steps."""
    settings = {
        "data.path": "stdlib",
        "run.steps": 100_000,  # it is deleted long before
        "run.eval_every": 0,
        "run.log_every": 1,
        "checkpoint.every": EVERY,
    }
    return ["--config", "tiny", *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def _attempt(run: Workload) -> int:
    return int(run.steps[-1]["attempt"]) if run.steps else -1


def _ready(run: Workload, attempt: int) -> bool:
    """Return whether this attempt trains and is PAST steps beyond its own checkpoint."""
    if _attempt(run) != attempt:
        return False
    first = next(line["step"] for line in run.steps if line["attempt"] == attempt)
    saved = run.saved(attempt)
    return bool(saved >= first and run.steps[-1]["step"] - saved >= PAST)


def table(measured: Sequence[Measured]) -> str:
    """Return the medians as a Markdown table: seconds by part, with a column for each case."""
    head = ["seconds (median)", *(one.case.words for one in measured)]
    names = [part.name for part in measured[0].recoveries[0].parts]
    rows = [[name, *(_shown(_median(one, name)) for one in measured)] for name in names]
    totals = [[recovery.seconds for recovery in one.recoveries] for one in measured]
    rows.append(["**total**", *(f"**{statistics.median(total):.2f}**" for total in totals)])
    rows.append(["fastest to slowest", *(f"{min(total):.2f} to {max(total):.2f}" for total in totals)])
    rows.append(["lost steps, each time", *(f"{one.lost_steps / len(one.recoveries):.1f}" for one in measured)])
    rule = ["---", *("---:" for _ in measured)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


def _median(measured: Measured, leg: str) -> float | None:
    result = [
        part.seconds
        for recovery in measured.recoveries
        for part in recovery.parts
        if part.name == leg and part.seconds is not None
    ]
    return statistics.median(result) if result else None


def _shown(seconds: float | None) -> str:
    return "with the next" if seconds is None else f"{seconds:.2f}"


def document(measured: Sequence[Measured], today: str) -> dict[str, Any]:
    """Return the content of the output file: every measurement, and the machine."""
    return {
        "date": today,
        "machine": machine(),
        "size": {"slices": SLICES, "type": TPU_TYPE, "checkpoint_every_steps": EVERY},
        "cases": {
            one.case.name: {
                "what": one.case.words,
                "lost_steps": one.lost_steps,
                "recoveries": [
                    {
                        "seconds": round(recovery.seconds, 3),
                        "parts": {
                            part.name: None if part.seconds is None else round(part.seconds, 3)
                            for part in recovery.parts
                        },
                    }
                    for recovery in one.recoveries
                ],
            }
            for one in measured
        },
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
