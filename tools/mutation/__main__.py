"""Mutation testing: small changes of the modules that make decisions, most of which their tests must notice.

    python -m tools.mutation                           # all modules of tools/mutation/modules.yaml
    python -m tools.mutation --module admission --all  # every place of one module

Changes are drawn at random, at most one for each place; a seed determines them. The results are in
tools/mutation/results.json, and as a table in docs/correctness.md. The exit code is 1 if too few are noticed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

try:
    from tools.mutation.drawing import Mutant, draw
    from tools.mutation.report import Result, Survivor, least, store
    from tools.mutation.running import ROOT, Runs, copied_tree
    from tools.mutation.table import Target, read_targets
except ModuleNotFoundError as error:
    raise SystemExit(f"error: this Python has no module {error.name!r}\n  hint: make mutation") from None

_LIMIT_FACTOR, _LIMIT_SECONDS = 3.0, 20.0  # of a run: so many times the unchanged tests' time, and so much more


def main() -> int:
    """Run the chosen targets; return the exit code."""
    targets = {target.name: target for target in read_targets()}
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--module", action="append", choices=targets, metavar="NAME", help="only this one; repeatable")
    parser.add_argument("--most", type=int, default=30, metavar="N", help="changes of each module [default: 30]")
    parser.add_argument("--all", action="store_true", help="all changes, instead of --most")
    parser.add_argument("--seed", type=int, default=1, help="of the draw [default: 1]")
    parser.add_argument("--at-least", type=int, default=90, metavar="PERCENT", help="of each module [default: 90]")
    parser.add_argument(
        "--python", type=Path, default=Path(".venv/bin/python"), help="runs tests [default: %(default)s]"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the changes and run nothing")
    parser.add_argument("--judge", action="store_true", help="only write the table of stored results anew")
    parser.add_argument("--no-write", action="store_true", help="only print the results")
    options = parser.parse_args()
    most = None if options.all else options.most
    chosen = [targets[name] for name in options.module or targets]
    if options.judge:
        store()
        return 0
    if options.dry_run:
        for target in chosen:
            _show(target, most, options.seed)
        return 0
    results = []
    with copied_tree(options.python.absolute()) as runs:
        for target in chosen:
            results.append(_measured(runs, target, most, options.seed))
            if not options.no_write:
                store(results[-1])
    return 0 if least(results) >= options.at_least else 1


def _drawn(target: Target, most: int | None, seed: int) -> tuple[list[Mutant], int]:
    source = (ROOT / target.module).read_text(encoding="utf-8")
    return draw(source, target.functions, most, f"{seed}/{target.name}")


def _show(target: Target, most: int | None, seed: int) -> None:
    mutants, places = _drawn(target, most, seed)
    print(f"{target.name}: {len(mutants)} of {places} places")
    for mutant in mutants:
        print(f"  {target.module}:{mutant.line} {mutant.operator}\n    - {mutant.old}\n    + {mutant.new}")


def _measured(runs: Runs, target: Target, most: int | None, seed: int) -> Result:
    """Run the tests of a target with each change that is drawn."""
    began, seconds = time.monotonic(), runs.unchanged_seconds(target)
    mutants, places = _drawn(target, most, seed)
    result = Result(
        name=target.name, module=target.module, seed=seed, date=datetime.now(UTC).date().isoformat(), places=places,
        drawn=len(mutants), unchanged_seconds=round(seconds, 1),
    )  # fmt: skip
    print(f"{target.name}: {len(mutants)} of {places} places, tests take {seconds:.0f} s", flush=True)
    for mutant in mutants:
        killer = runs.killer(target, mutant, seconds * _LIMIT_FACTOR + _LIMIT_SECONDS)
        result = result.with_killer(killer)
        if not killer:
            survivor = Survivor(mutant.line, mutant.old, mutant.new, target.reason(mutant.old, mutant.new))
            result = dataclasses.replace(result, survivors=(*result.survivors, survivor))
        print(f"  {killer or 'SURVIVED'}  {target.module}:{mutant.line}", flush=True)
        if not killer:
            print(f"    - {mutant.old}\n    + {mutant.new}", flush=True)
    result = dataclasses.replace(result, seconds=round(time.monotonic() - began))
    print(f"  {result.summary()}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
