"""Command line of the simulation of checkpoints.

python -m tests.simulation.checkpoints --lives 10000 --seed 1
python -m tests.simulation.checkpoints --life 1/17     # replay one life
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.checkpoints.world import live
from tests.simulation.runner import add_options, results


def main() -> int:
    """Simulate; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=2000, help="[default: 2000]")
    add_options(parser, "life")
    options = parser.parse_args()
    lives = [options.life] if options.life else [f"{options.seed}/{number}" for number in range(options.lives)]
    began, changes = time.monotonic(), 0
    for name, (made, problem) in results(lives, simulate, options.workers, chunksize=10):
        if problem:
            print(f"{problem}\nlife {name} fails: python -m tests.simulation.checkpoints --life {name}")
            return 1
        changes += made
    print(f"{len(lives):,} lives, {changes:,} changes of files in {time.monotonic() - began:.0f} s: no problem")
    return 0


def simulate(name: str) -> tuple[int, str]:
    """Return (changes of files, problem or "") of one life."""
    try:
        return live(name).schedule.steps, ""
    except Exception:
        return 0, traceback.format_exc()


if __name__ == "__main__":
    sys.exit(main())
