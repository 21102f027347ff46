"""Options of the command lines of all simulations, and the results of simulations by name, on all cores."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def add_options(parser: argparse.ArgumentParser, unit: str) -> None:
    """Add the options for the seed, for a single simulation, which is a `unit`, and for the number of processes."""
    parser.add_argument("--seed", type=int, default=1, help="[default: 1]")
    parser.add_argument(f"--{unit}", metavar="SEED/NUMBER", help="simulate only this one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes [default: one per core]")


def results(
    names: Sequence[str], simulate: Callable[[str], T], workers: int, chunksize: int = 1
) -> Iterator[tuple[str, T]]:
    """Yield (name, result) in the order of the names; a single simulation runs in this process."""
    workers = min(workers, len(names))
    if workers <= 1:
        yield from ((name, simulate(name)) for name in names)
        return
    with ProcessPoolExecutor(workers) as pool:
        try:
            yield from zip(names, pool.map(simulate, names, chunksize=chunksize), strict=True)
        finally:
            pool.shutdown(cancel_futures=True)
