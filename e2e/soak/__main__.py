"""Command line of the soak."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from e2e.harness import DrillError, own_cluster
from e2e.soak.faults import ELASTIC_KINDS, HOSTS_PER_SLICE, KINDS, Kind, plan
from e2e.soak.injection import TPU_TYPE, Soak, reference_losses
from e2e.soak.report import Result, differing_steps, document, line, table

STEP_SECONDS = 10.0  # maximum mean time of an undisturbed step


def soak(
    folder: Path,
    seed: int,
    slices: int,
    first: int,
    faults: int,
    *,
    min_slices: int | None = None,
    names: Sequence[str] = (),
    seconds: float = float("inf"),
) -> Result:
    """Run a soak in a cluster of its own, and an undisturbed run of the same number of steps.

    Slices are elastic if `min_slices` is not None. Without `names` of kinds there are all, by their weights. No further
    fault is injected after `seconds`.
    """
    began = time.monotonic()
    with own_cluster(folder, "soak", TPU_TYPE, slices) as lab:
        # Each fault causes at most a few restarts; the limit must not end the run.
        restarts, kinds = 10 * faults + 10, chosen_kinds(min_slices, names)
        disturbed = Soak(lab, slices, restarts, folder / "artifacts", min_slices)
        differing = None
        try:
            disturbed.start()
            for fault in plan(seed, slices * HOSTS_PER_SLICE, first, faults, kinds):
                if time.monotonic() - began > seconds:
                    break
                say(line(disturbed.inject(fault)))
            disturbed.stop()
            finished = disturbed.progress.steps
            last = max(line["step"] for line in finished)
            limit = 300 + STEP_SECONDS * last
            reference = reference_losses(lab, "calm", slices, last, limit, min_slices=min_slices)
            differing = differing_steps(finished, reference)
        except (DrillError, KeyboardInterrupt) as error:
            say(f"error: {error}")
            lab.collect(folder / "artifacts" / "end")
        return Result(
            seed, slices, min_slices, time.monotonic() - began, disturbed.outcomes, disturbed.resources, differing
        )


def chosen_kinds(min_slices: int | None, names: Sequence[str]) -> Mapping[str, Kind]:
    """Return the kinds of these names, equally likely, or all. Raises ValueError for an unknown name."""
    kinds = ELASTIC_KINDS if min_slices else KINDS
    if unknown := [name for name in names if name not in kinds]:
        raise ValueError(f"unknown kinds {', '.join(unknown)}: choose from {', '.join(kinds)}")
    return {name: replace(kinds[name], weight=1) for name in names} or kinds


def main() -> int:
    """Run the soak, print the table, write the file; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m e2e.soak", description="Inject random faults into a local run.")
    parser.add_argument("--faults", type=int, default=500, help="number of faults [default: 500]")
    parser.add_argument("--seed", type=int, default=1, help="seed of the plan [default: 1]")
    parser.add_argument("--first", type=int, default=1, help="number of the first fault of the plan [default: 1]")
    parser.add_argument("--slices", type=int, default=4, help="number of slices of 2 hosts [default: 4]")
    parser.add_argument("--min-slices", type=int, help="make the slices elastic, with this minimum")
    parser.add_argument("--kinds", default="", help="inject only these kinds, separated by commas, each as often")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="inject no fault after this time")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    names = [name.strip() for name in options.kinds.split(",") if name.strip()]
    if options.min_slices is not None and not 1 <= options.min_slices <= options.slices:
        parser.error(f"--min-slices must be between 1 and --slices ({options.slices}), got {options.min_slices}")
    try:
        chosen_kinds(options.min_slices, names)
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the run, too
    folder = Path(tempfile.mkdtemp(prefix="xpk-soak-"))
    chosen = options.seed, options.slices, options.first, options.faults
    result = soak(folder, *chosen, min_slices=options.min_slices, names=names, seconds=60 * options.minutes)
    print(table(result))
    for problem in result.problems:
        print(problem)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(document(result), indent=1) + "\n", encoding="utf-8")
        say(f"written to {options.output}")
    if (folder / "artifacts").exists():
        say(f"logs of what went wrong are in {folder / 'artifacts'}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if result.problems or result.survived < options.faults else 0


def say(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
