"""Command line of the simulated races.

    python -m tests.simulation.placement --races 10000 --seed 1
    python -m tests.simulation.placement --race 1/17     # replay one race

A seed determines everything that happens in a race. The first violation of a property ends the run.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.placement.race import Race
from tests.simulation.runner import add_options, results


def main() -> int:
    """Simulate; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=10_000, help="[default: 10000]")
    add_options(parser, "race")
    options = parser.parse_args()
    races = [options.race] if options.race else [f"{options.seed}/{number}" for number in range(options.races)]
    began, requests, releases, crashes = time.monotonic(), 0, 0, 0
    for name, (counts, problem) in results(races, simulate, options.workers, chunksize=16):
        if problem:
            print(f"{problem}\nrace {name} fails: python -m tests.simulation.placement --race {name}")
            return 1
        requests, releases, crashes = requests + counts[0], releases + counts[1], crashes + counts[2]
    print(
        f"{len(races):,} races, {requests:,} requests, {crashes:,} crashes of placers, {releases:,} releases "
        f"in {time.monotonic() - began:.0f} s: no problem"
    )
    return 0


def simulate(name: str) -> tuple[tuple[int, int, int], str]:
    """Return (requests, releases and crashes of a race, problem or "")."""
    race = Race(name)
    try:
        race.live()
    except Exception:
        return (0, 0, 0), traceback.format_exc()
    return (race.requests, race.moves, race.crashes), ""


if __name__ == "__main__":
    sys.exit(main())
