"""Size of an installation: megabytes and packages of a new virtual environment, without extras and with each of them.

    python -m bench.install [EXTRA ...]

Needs an index of packages for pip, as `make install` does. Writes bench/results/install-<date>.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from e2e.machine import machine

RESULTS = Path(__file__).parent / "results"
_PROJECT = Path(__file__).parents[1]
MAX_MB, MAX_PACKAGES = 80, 25  # of the installation without extras
_LARGE = ("dev", "tpu")  # for developers; 700 MB of compiler


def measure(extra: str | None, folder: Path) -> dict[str, Any]:
    """Install the project into a new environment; return what it takes beyond Python and pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    project = str(_PROJECT) + (f"[{extra}]" if extra else "")
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--quiet")
    constraints = str(_PROJECT / "constraints.txt")
    subprocess.run([*pip, "install", "--no-compile", "--constraint", constraints, project], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    packages = list(metadata.distributions(path=[str(site)]))
    bytes_ = sum(file.stat().st_size for file in site.rglob("*") if file.is_file() and not file.is_symlink())
    return {"extra": extra or "", "megabytes": round(bytes_ / 1e6, 1), "packages": len(packages)}


def main() -> int:
    """Measure, print a table, and write the results; the exit code is 1 if the base exceeds its limits."""
    extras = tomllib.loads((_PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    parser = argparse.ArgumentParser(prog="python -m bench.install", description=__doc__)
    chosen = [extra for extra in extras if extra not in _LARGE]
    parser.add_argument("extras", nargs="*", default=chosen, help=f"default: {', '.join(chosen)}")
    rows: list[dict[str, Any]] = []
    for extra in (None, *parser.parse_args().extras):
        with tempfile.TemporaryDirectory(prefix="xpk-install-") as folder:
            rows.append(measure(extra, Path(folder) / "venv"))
        row = rows[-1]
        print(f"| {row['extra'] or 'none'} | {row['megabytes']:.1f} | {row['packages']} |", flush=True)
        write(rows)  # after each one, as the last ones take minutes
    return int(rows[0]["megabytes"] > MAX_MB or rows[0]["packages"] > MAX_PACKAGES)


def write(rows: list[dict[str, Any]]) -> None:
    """Write the results."""
    today = datetime.now(UTC).date().isoformat()
    report = {"date": today, "machine": machine(), "installations": rows}
    (RESULTS / f"install-{today}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
