"""Command line of the simulated races.

    python -m tests.simulation.placement --races 10000 --seed 1
    python -m tests.simulation.placement --race 1/17     # replay one race

A seed determines everything that happens in a race. The first violation of a property ends the run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.placement.race import Race


def main() -> int:
    """Simulate; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=10_000, help="[default: 10000]")
    parser.add_argument("--seed", type=int, default=1, help="[default: 1]")
    parser.add_argument("--race", metavar="SEED/NUMBER", help="simulate only this one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes [default: one per core]")
    options = parser.parse_args()
    races = [options.race] if options.race else [f"{options.seed}/{number}" for number in range(options.races)]
    began, requests, releases, crashes = time.monotonic(), 0, 0, 0
    for name, counts, problem in _results(races, 1 if options.race else options.workers):
        if problem:
            print(f"{problem}\nrace {name} fails: python -m tests.simulation.placement --race {name}")
            return 1
        requests, releases, crashes = requests + counts[0], releases + counts[1], crashes + counts[2]
    print(
        f"{len(races):,} races, {requests:,} requests, {crashes:,} crashes of placers, {releases:,} releases "
        f"in {time.monotonic() - began:.0f} s: no problem"
    )
    return 0


def _results(races: list[str], workers: int) -> Iterator[tuple[str, tuple[int, int, int], str]]:
    """Yield (race, its counts, problem or "") as the races end."""
    if workers == 1:
        yield from map(_simulate, races)
        return
    with ProcessPoolExecutor(workers) as pool:
        try:
            yield from pool.map(_simulate, races, chunksize=16)
        finally:
            pool.shutdown(cancel_futures=True)


def _simulate(name: str) -> tuple[str, tuple[int, int, int], str]:
    """Return (race, its requests, releases and crashes, problem or "")."""
    race = Race(name)
    try:
        race.live()
    except Exception:
        return name, (0, 0, 0), traceback.format_exc()
    return name, (race.requests, race.moves, race.crashes), ""


if __name__ == "__main__":
    sys.exit(main())
