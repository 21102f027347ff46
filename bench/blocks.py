"""Blocks of training steps, which the benchmarks of the trainer time alternately in one process."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

BLOCK = 20  # steps


def start_training(config: Any) -> Iterator[int]:
    """Start the trainer as one host without a cluster, and return its steps. It is not ended: leave by os._exit."""
    from trainer.hosts import job as jobs
    from trainer.hosts.bootstrap import Host
    from trainer.train import steps

    job = jobs.open_job(config, Host(), lambda code, seconds: None)
    return steps(job, jobs.meet(job))


def block(run: Iterator[Any], steps: int = BLOCK) -> float:
    """Train a block of steps; return the seconds per step. All of its steps have ended when this returns."""
    import jax

    watch = time.perf_counter()
    for _ in range(steps):
        next(run)
    jax.block_until_ready(jax.live_arrays())
    return (time.perf_counter() - watch) / steps
