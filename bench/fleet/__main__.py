"""Figures of fleet operations that take minutes.

    python -m bench.fleet                 # all, ten minutes on two quiet cores
    python -m bench.fleet console usage   # only these; the others' results of the newest file stay

Writes bench/results/fleet-<date>.json and docs/fleet-figures.md. The exit code is 1 if a limit is not met.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from bench.fleet.measures import MEASURES
from bench.fleet.page import PAGE, read_result, render
from e2e.machine import machine

RESULTS = Path(__file__).resolve().parents[1] / "results"


def main() -> int:
    """Measure; return the exit code."""
    known = [one.name for one in MEASURES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *known], help=", ".join(known))
    chosen = parser.parse_args().names or known
    measured = (read_result() or {}).get("measured", {}) if chosen != known else {}
    for one in MEASURES:
        if one.name in chosen:
            began = time.monotonic()
            measured[one.name] = one.measure()
            print(f"{one.name}: {one.words(measured[one.name])} ({time.monotonic() - began:.0f} s)", flush=True)
    date = f"{datetime.now(UTC):%F}"
    result = {
        "date": date,
        "machine": machine(),
        "measured": {name: measured[name] for name in known if name in measured},
    }
    (RESULTS / f"fleet-{date}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(render(result), encoding="utf-8")
    missed = [one.name for one in MEASURES if one.name in chosen and not one.is_met(measured[one.name])]
    if missed:
        print(f"limits are not met: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
