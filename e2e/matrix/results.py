"""Results by cell: each invocation replaces those of its own cells."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.matrix.cell import Outcome

FOLDER = Path(__file__).with_name("results")
_ROOT = Path(__file__).parents[2]


def read(platform: str, folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Return the results of a platform by "FAULT PROGRAM"; {} before the first."""
    file = folder / f"{platform}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def write(platform: str, fault: str, program: str, outcome: Outcome, seed: int, folder: Path = FOLDER) -> None:
    """Replace the result of a cell."""
    facts: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "commit": commit(), "seed": seed}
    facts["load"] = round(os.getloadavg()[0], 1)  # times depend on it
    folder.mkdir(exist_ok=True)
    with (folder / f"{platform}.json").open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another invocation may run
        file.seek(0)
        known = json.loads(file.read() or "{}")
        known[f"{fault} {program}"] = {**asdict(outcome), **facts}
        file.truncate(0)
        file.write(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def commit() -> str:
    """Return the commit of the checkout, with "+" if files have changed since."""
    asked = ["git", "-C", str(_ROOT)]
    found = subprocess.run([*asked, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(
        [*asked, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!e2e/matrix/results", ":!docs"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")
