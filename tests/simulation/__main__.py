"""Command line of the simulation.

    python -m tests.simulation --hours 1000000 --seed 1
    python -m tests.simulation --world 1/17     # replay one world

A world is one cluster's life of a week. Its seed determines everything that happens in it. The first violation of
a property ends the run.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.lives import HOURS, live
from tests.simulation.runner import add_options, results


def main() -> int:
    """Simulate; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=50_000.0, help="of clusters' lives, in total [default: 50000]")
    add_options(parser, "world")
    options = parser.parse_args()
    count = max(1, round(options.hours / HOURS))
    worlds = [options.world] if options.world else [f"{options.seed}/{number}" for number in range(count)]
    began, passes, done = time.monotonic(), 0, 0
    for name, (made, problem) in results(worlds, simulate, options.workers):
        if problem:
            print(f"{problem}\nworld {name} fails: python -m tests.simulation --world {name}")
            return 1
        passes, done = passes + made, done + 1
        if done % max(1, len(worlds) // 20) == 0:
            print(f"{done * HOURS:,.0f} hours, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(
        f"{done:,} worlds, {done * HOURS:,.0f} hours, {passes:,} passes in {time.monotonic() - began:.0f} s: no problem"
    )
    return 0


def simulate(name: str) -> tuple[int, str]:
    """Return (passes, problem or "") of one life."""
    try:
        return live(name).passes, ""
    except Exception:
        return 0, traceback.format_exc()


if __name__ == "__main__":
    sys.exit(main())
