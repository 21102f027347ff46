"""Lives of clusters by their seeds."""

from __future__ import annotations

from random import Random

from tests.simulation.life import HOUR, Life
from tests.simulation.world import World

HOURS = 150.0  # of a life: a longer one takes more than 5 s to replay


def live(seed: str, hours: float = HOURS, queues: int | None = None) -> World:
    """Simulate the life of a cluster; its size follows from the seed, or its number of queues. Raises Violated."""
    rng = Random(f"{seed}/size")
    slices, hosts, count = rng.randint(1, 4), rng.randint(1, 2), rng.choice((1, 1, 2, 3))
    world = World(seed, slices, hosts, queues or count)
    world.crash_share = rng.choice((0.0, 0.001, 0.02))
    life = Life(world, calm=rng.choice((8.0, 30.0, 100.0)))
    world.run(hours * HOUR)
    life.end()
    return world
