"""Blocks of training steps, the unit that benches of the trainer time in turn in one process."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

BLOCK = 20  # steps


def block(run: Iterator[Any]) -> float:
    """Train a block of steps; return the seconds of one. Nothing of it runs on when this returns."""
    import jax

    began = time.perf_counter()
    for _ in range(BLOCK):
        next(run)
    jax.block_until_ready(jax.live_arrays())
    return (time.perf_counter() - began) / BLOCK
