"""Results by cell: each invocation replaces those of its own cells."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.matrix.cell import Outcome
from xpk.version import __version__

FOLDER = Path(__file__).with_name("results")


def read(platform: str, folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Return the results of a platform by "FAULT PROGRAM"; {} before the first."""
    file = folder / f"{platform}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def write(platform: str, fault: str, program: str, outcome: Outcome, seed: int, folder: Path = FOLDER) -> None:
    """Replace the result of a cell."""
    facts: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "version": __version__, "seed": seed}
    facts["load"] = round(os.getloadavg()[0], 1)  # times depend on it
    folder.mkdir(exist_ok=True)
    with (folder / f"{platform}.json").open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another invocation may run
        file.seek(0)
        known = json.loads(file.read() or "{}")
        known[f"{fault} {program}"] = {**asdict(outcome), **facts}
        file.truncate(0)
        file.write(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
