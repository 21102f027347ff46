"""Command line of the simulation of membership.

python -m tests.simulation.membership --lives 2000 --seed 1
python -m tests.simulation.membership --life 1/17     # replay one life, and show its faults
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.membership.world import World
from tests.simulation.runner import add_options, results


def main() -> int:
    """Simulate; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=2000, help="[default: 2000]")
    add_options(parser, "life")
    options = parser.parse_args()
    if options.life:
        world, problem = simulate(options.life)
        print(*world.trace, problem or "no problem", sep="\n")
        return 1 if problem else 0
    lives = [f"{options.seed}/{number}" for number in range(options.lives)]
    began, steps = time.monotonic(), 0
    for name, (made, problem) in results(lives, _count, options.workers, chunksize=10):
        if problem:
            print(f"{problem}\nlife {name} fails: python -m tests.simulation.membership --life {name}")
            return 1
        steps += made
    print(f"{len(lives):,} lives, {steps:,} steps of slices in {time.monotonic() - began:.0f} s: no problem")
    return 0


def simulate(name: str) -> tuple[World, str]:
    """Return (world, problem or "") of one life."""
    world = World(name)
    try:
        world.live()
    except Exception:
        return world, traceback.format_exc()
    return world, ""


def _count(name: str) -> tuple[int, str]:
    world, problem = simulate(name)
    return world.properties.steps, problem


if __name__ == "__main__":
    sys.exit(main())
