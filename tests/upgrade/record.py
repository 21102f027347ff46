"""Record the fixtures of a release: `python -m tests.upgrade.record --version 0.2.0 --commit v0.2.0`.

The release really runs, from the files of its commit and with the packages of this environment.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime

from tests.upgrade import kubernetes_objects, local_state, training
from tests.upgrade.release import FIXTURES, FOLDER, ROOT, Release

PARTS = {"state": local_state.record, "training": training.record, "kubernetes": kubernetes_objects.record}


def main() -> int:
    """Record; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", required=True, help="name of the fixtures' folder")
    parser.add_argument("--commit", help="[default: vVERSION]")
    parser.add_argument("--only", choices=PARTS, help="record one part again")
    options = parser.parse_args()
    commit = options.commit or f"v{options.version}"
    commit = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    folder = FIXTURES / options.version
    folder.mkdir(parents=True, exist_ok=True)
    for part, record in PARTS.items():
        if options.only in (None, part):
            print(f"recording {part}", file=sys.stderr, flush=True)
            release = Release(commit)
            try:
                record(release, folder)
            finally:
                release.kill()
                shutil.rmtree(FOLDER)
    origin = {"commit": commit, "date": datetime.now(UTC).date().isoformat(), "python": platform.python_version()}
    (folder / "origin.json").write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
