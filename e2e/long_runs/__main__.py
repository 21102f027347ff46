"""Run what takes too long for CI, and write the results to docs/long-runs.md.

python -m e2e.long_runs [NAME ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.long_runs.page import PAGE, read_results, write_results
from e2e.long_runs.runs import RUNS, LongRun

REPOSITORY = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run the chosen runs one after another; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m e2e.long_runs", description="Run what takes too long for CI.")
    names = [run.name for run in RUNS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(names)} [default: all]")
    chosen = parser.parse_args().names or names
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"unknown run '{unknown[0]}': choose from {', '.join(names)}")
    failed = False
    for run in RUNS:
        if run.name in chosen:
            result = perform(run)
            write_results(read_results() | {run.name: result})  # after each, so that an interruption loses only one
            failed |= result["exit_code"] != 0
    print(f"==> written to {PAGE.relative_to(REPOSITORY)}", flush=True)
    return 1 if failed else 0


def perform(run: LongRun) -> dict[str, Any]:
    """Run a command, print its output as it comes, and return its result."""
    print(f"==> {run.name}: {run.title} (about {run.minutes} minutes)", flush=True)
    began, lines = time.monotonic(), []
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    with subprocess.Popen(
        run.command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "seconds": round(time.monotonic() - began),
        "exit_code": process.returncode,
        "lines": run.results_in(lines),
    }


def _commit() -> str:
    """Return the short name of the checked-out commit."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, check=False)
    return done.stdout.decode().strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
