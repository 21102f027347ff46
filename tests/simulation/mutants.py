"""Bugs put into the product, which the simulations must find; mutants.yaml lists them.

python -m tests.simulation.mutants [NAME ...]
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.simulation.checkpoints import world as checkpoints
from tests.simulation.lives import live
from tests.simulation.membership import world as membership
from tests.simulation.placement.race import Race

MUTANT_HOURS = 200.0  # of each life
_LIVES = 200
# Modules of the membership of slices.
_MEMBERSHIP = ("xpk_shared.slices.", "xpk_shared.links.", "trainer.hosts.", "trainer.elastic.")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module; `old` occurs once.

    `queues`: of the clusters that may show it, by default any number. `faults`: kinds of faults that may show it, of
    lives of elastic slices; by default all. `fixed`: the commits that fixed this bug, if it was a real one.
    """

    name: str
    module: str
    old: str
    new: str
    queues: int | None = None
    faults: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()


MUTANTS = tuple(Mutant(**entry) for entry in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8")))


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Put a bug into the modules for the block. Raises ValueError if its place is not found exactly once."""
    module = importlib.import_module(mutant.module)
    source = inspect.getsource(module)
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: its text is in {mutant.module} {source.count(mutant.old)} times")
    changed = types.ModuleType(module.__name__)
    exec(compile(source.replace(mutant.old, mutant.new), str(module.__file__), "exec"), changed.__dict__)  # noqa: S102  # the module itself
    codes = [
        (function, function.__code__, other.__code__)
        for holder, twin in _pairs(module, changed)
        for name, function in vars(holder).items()
        if isinstance(function, types.FunctionType) and isinstance(other := vars(twin).get(name), types.FunctionType)
        and function.__module__ == module.__name__ and function.__code__.co_freevars == other.__code__.co_freevars
    ]  # fmt: skip
    values = {name: vars(module)[name] for name in ("_POLICIES",) if name in vars(module)}
    try:
        for function, _, code in codes:
            function.__code__ = code
        for name in values:
            setattr(module, name, vars(changed)[name])
        yield
    finally:
        for function, code, _ in codes:
            function.__code__ = code
        for name, value in values.items():
            setattr(module, name, value)


def _pairs(module: types.ModuleType, changed: types.ModuleType) -> Iterator[tuple[object, object]]:
    """Yield a module and its classes, each with its changed twin."""
    yield module, changed
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield value, vars(changed)[name]


def relive(mutant: Mutant, seed: str) -> None:
    """Simulate the life of a seed in which a mutant may show. Raises what it violates."""
    if mutant.module.startswith(_MEMBERSHIP):
        membership.live(seed, tuple(mutant.faults))
    elif mutant.module.startswith("xpk.jobs.placement."):
        Race(seed).live()
    elif mutant.module.startswith("trainer."):
        checkpoints.live(seed)
    else:
        live(seed, MUTANT_HOURS, mutant.queues)


def find(mutant: Mutant, lives: int = _LIVES) -> tuple[str, str]:
    """Return the seed of the first life that shows a bug and what it violates, or two empty texts."""
    with planted(mutant):
        for number in range(lives):
            seed = f"mutant/{number}"
            try:
                relive(mutant, seed)
            except Exception as error:  # an error of the product shows the bug, too
                return seed, f"{type(error).__name__}: {error}"
    return "", ""


def main() -> int:
    """Look for every bug; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *(mutant.name for mutant in MUTANTS)], help="only these")
    chosen = parser.parse_args().names
    missed = 0
    for mutant in MUTANTS:
        if chosen and mutant.name not in chosen:
            continue
        began = time.monotonic()
        seed, what = find(mutant)
        missed += not seed
        result = f"found by {seed}: {what.splitlines()[0]}" if seed else "not found"
        print(f"{mutant.name:<30} {time.monotonic() - began:6.1f} s  {result[:150]}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
