"""Blocks of training steps, which the benchmarks of the trainer time alternately in one process."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

BLOCK = 20  # steps


def block(run: Iterator[Any]) -> float:
    """Train a block of steps; return the seconds per step. All of its steps have ended when this returns."""
    import jax

    watch = time.perf_counter()
    for _ in range(BLOCK):
        next(run)
    jax.block_until_ready(jax.live_arrays())
    return (time.perf_counter() - watch) / BLOCK
